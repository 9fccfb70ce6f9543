"""Memories, and what is and is not one with each: for finding out which cosine near-copies have.

Written for this; `OTHERS` differ from their memory in one fact and in as little else as can be.
"""

from typing import Final

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A memory.

    Attributes:
        copies: The same, typed once more: with other marks, a filler, a slip.
        paraphrases: The same in other words.
        others: Something else in nearly the same words.
    """

    memory: str
    copies: tuple[str, ...]
    paraphrases: tuple[str, ...]
    others: tuple[str, ...]


SAMPLES: Final = (
    Sample(
        memory="I joined the pool on Mill Street last week, they open at six.",
        copies=(
            "i joined the pool on Mill street last week. They open at six",
            "So, I joined the pool on Mill Street last week - they open at six!",
        ),
        paraphrases=("Last week I became a member of the Mill Street pool, which opens at six.",),
        others=(
            "I joined the pool on Mill Street last week, they open at nine.",
            "I joined the pool on Hill Street last week, they open at six.",
            "I left the pool on Mill Street last week, they open at six.",
        ),
    ),
    Sample(
        memory="The customer is allergic to peanuts.",
        copies=("the customer is allergic to peanuts", "Customer is allergic to peanuts!"),
        paraphrases=("Peanuts cause an allergic reaction in this customer.",),
        others=(
            "The customer is not allergic to peanuts.",
            "The customer is allergic to shrimps.",
            "The customer's son is allergic to peanuts.",
        ),
    ),
    Sample(
        memory="The landlord wants the rent by the 5th of every month.",
        copies=(
            "The landlord wants the rent by the 5th of each month",
            "the landlord wants rent by the 5th of every month!",
        ),
        paraphrases=("Rent has to reach the landlord every month before the 5th is over.",),
        others=(
            "The landlord wants the rent by the 15th of every month.",
            "The landlord wants the rent by the 5th of every quarter.",
            "The landlady wants the rent by the 5th of every month.",
        ),
    ),
    Sample(
        memory="We agreed to write all new backend code in Rust.",
        copies=(
            "We agreed to write all new backend code in Rust",
            "we agreed to write all the new backend code in rust.",
        ),
        paraphrases=("The team settled on Rust for any new code in the backend.",),
        others=(
            "We agreed to write all new backend code in Go.",
            "We agreed to write all new frontend code in Rust.",
            "We never agreed to write all new backend code in Rust.",
        ),
    ),
    Sample(
        memory="Order ORD-7781 was refunded in full this morning.",
        copies=(
            "order ORD-7781 was refunded in full this morning",
            "Order ORD-7781 was refunded, in full, this morning.",
        ),
        paraphrases=("The full amount of ORD-7781 was paid back this morning.",),
        others=(
            "Order ORD-7787 was refunded in full this morning.",
            "Order ORD-7781 was refunded in part this morning.",
            "Order ORD-7781 was shipped in full this morning.",
        ),
    ),
    Sample(
        memory="My spaniel Biscuit chewed the sofa again.",
        copies=("my spaniel Biscuit chewed the sofa again!!", "My spaniel biscuit chewed up the sofa again."),
        paraphrases=("Biscuit, our spaniel, has been gnawing at the couch once more.",),
        others=(
            "My spaniel Cookie chewed the sofa again.",
            "My poodle Biscuit chewed the sofa again.",
            "My spaniel Biscuit chewed the carpet again.",
        ),
    ),
    Sample(
        memory="She starts as head nurse on Monday at St Mary's.",
        copies=(
            "she starts as head nurse on Monday at St. Mary's",
            "She starts as a head nurse on Monday at St Mary's.",
        ),
        paraphrases=("From Monday on she will be the head nurse of St Mary's.",),
        others=(
            "She starts as head nurse on Tuesday at St Mary's.",
            "He starts as head nurse on Monday at St Mary's.",
            "She stops as head nurse on Monday at St Mary's.",
        ),
    ),
    Sample(
        memory="Release 4.2 leaked database connections, so we went back to 4.1.",
        copies=(
            "Release 4.2 leaked database connections so we went back to 4.1",
            "release 4.2 leaked DB connections, so we went back to 4.1.",
        ),
        paraphrases=("We returned to 4.1 because 4.2 did not give its database connections back.",),
        others=(
            "Release 4.3 leaked database connections, so we went back to 4.1.",
            "Release 4.1 leaked database connections, so we went back to 4.2.",
            "Release 4.2 leaked file handles, so we went back to 4.1.",
        ),
    ),
    Sample(
        memory="We booked a cabin by a lake in Finland for August.",
        copies=(
            "we booked a cabin by a lake in Finland for August",
            "We've booked a cabin by a lake in Finland for August :)",
        ),
        paraphrases=("For August we have reserved a lakeside hut in Finland.",),
        others=(
            "We booked a cabin by a lake in Sweden for August.",
            "We booked a cabin by a lake in Finland for July.",
            "We cancelled a cabin by a lake in Finland for August.",
        ),
    ),
    Sample(
        memory="He always asks for an aisle seat near the front.",
        copies=("He always asks for an aisle seat near the front", "he always asks for aisle seats near the front."),
        paraphrases=("Every time he requests a place on the aisle, towards the front.",),
        others=(
            "He always asks for a window seat near the front.",
            "He always asks for an aisle seat near the back.",
            "She always asks for an aisle seat near the front.",
        ),
    ),
    Sample(
        memory="Omar has three children; the eldest is nine.",
        copies=("Omar has three children, the eldest is nine", "omar has three children - the eldest is nine."),
        paraphrases=("There are three kids in Omar's family and the oldest of them is nine.",),
        others=(
            "Omar has two children; the eldest is nine.",
            "Omar has three children; the youngest is nine.",
            "Omer has three children; the eldest is nine.",
        ),
    ),
    Sample(
        memory="I take two tablets for my blood pressure each morning.",
        copies=(
            "I take two tablets for my blood pressure every morning",
            "i take two tablets for my blood pressure each mornng",
        ),
        paraphrases=("Every morning I swallow two pills against high blood pressure.",),
        others=(
            "I take two tablets for my blood pressure each evening.",
            "I take ten tablets for my blood pressure each morning.",
            "I don't take two tablets for my blood pressure each morning.",
        ),
    ),
    Sample(
        memory="Dark mode hurts my eyes, please keep the editor light.",
        copies=(
            "dark mode hurts my eyes. please keep the editor light",
            "Dark mode hurts my eyes, pls keep the editor light!",
        ),
        paraphrases=("Leave the editor in its light theme, a dark one is bad for my eyes.",),
        others=(
            "Light mode hurts my eyes, please keep the editor dark.",
            "Dark mode helps my eyes, please keep the editor light.",
        ),
    ),
    Sample(
        memory="Alice pays Bob 200 euros for the bike.",
        copies=("alice pays Bob 200 euros for the bike", "Alice pays Bob 200 euros for the bike!"),
        paraphrases=("For the bicycle Bob gets 200 euros from Alice.",),
        others=(
            "Bob pays Alice 200 euros for the bike.",
            "Alice pays Bob 300 euros for the bike.",
            "Alice pays Bob 200 dollars for the bike.",
        ),
    ),
    Sample(
        memory="The deploy failed because the disk was full.",
        copies=("The deploy failed because the disk was full", "The deployment failed because the disk was full."),
        paraphrases=("There was no space left on the disk, so deploying did not work.",),
        others=(
            "The deploy succeeded because the disk was full.",
            "The deploy failed because the disk was slow.",
            "The deploy failed although the disk was full.",
        ),
    ),
    Sample(
        memory="我上周办了磨坊街游泳馆的会员，早上六点开门。",
        copies=("我上周办了磨坊街游泳馆的会员,早上六点开门", "我上周办了磨坊街游泳馆的会员，早上六点开门！"),
        paraphrases=("上个星期我成了磨坊街游泳馆的会员，他们六点就开始营业。",),
        others=(
            "我上周办了磨坊街游泳馆的会员，早上九点开门。",
            "我上周办了磨坊街健身房的会员，早上六点开门。",
            "我上周退了磨坊街游泳馆的会员，早上六点开门。",
        ),
    ),
    Sample(
        memory="客户对花生过敏。",
        copies=("客户对花生过敏", "客户对花生过敏！"),
        paraphrases=("这位客户不能吃花生，吃了会过敏。",),
        others=("客户对花生不过敏。", "客户对虾过敏。", "客户的儿子对花生过敏。"),
    ),
    Sample(
        memory="我每天早上要吃两片降压药。",
        copies=("我每天早上要吃两片降压药", "我每天早上要吃两片降压药呢。"),
        paraphrases=("每天早晨我得服两片降血压的药。",),
        others=("我每天晚上要吃两片降压药。", "我每天早上要吃三片降压药。", "我每天早上不用吃两片降压药。"),
    ),
    Sample(
        memory="我们订了八月份芬兰湖边的小木屋。",
        copies=("我们订了八月份芬兰湖边的小木屋", "我们订了八月份芬兰湖边的小木屋~"),
        paraphrases=("八月我们要去芬兰，已经在湖边租好了木屋。",),
        others=(
            "我们订了八月份瑞典湖边的小木屋。",
            "我们订了七月份芬兰湖边的小木屋。",
            "我们退了八月份芬兰湖边的小木屋。",
        ),
    ),
    Sample(
        memory="他每次都要前排靠过道的座位。",
        copies=("他每次都要前排靠过道的座位", "他每次都要前排靠过道的座位！"),
        paraphrases=("坐车他总是选靠前面、挨着过道的位子。",),
        others=("他每次都要前排靠窗的座位。", "他每次都要后排靠过道的座位。", "她每次都要前排靠过道的座位。"),
    ),
)
