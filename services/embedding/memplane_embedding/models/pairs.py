"""Questions and the memories that answer them, in English and in Chinese, written for calibration.

No two entries share a subject, so that a question and another entry's memory are an unrelated pair.
"""

from typing import Final

import msgspec


class Pair(msgspec.Struct, frozen=True):
    """A question and the memory that answers it, in both languages."""

    question: str
    memory: str
    question_zh: str
    memory_zh: str


PAIRS: Final = tuple(
    Pair(*row)
    for row in (
        (
            "Where does Ann go swimming?",
            "I joined the pool on Mill Street last week, they open at six.",
            "小安在哪里游泳？",
            "我上周办了磨坊街游泳馆的会员，早上六点开门。",
        ),
        (
            "What is the customer allergic to?",
            "She told us that peanuts make her throat swell.",
            "客户对什么过敏？",
            "她说吃花生会喉咙肿。",
        ),
        (
            "When is the rent due?",
            "The landlord wants the money by the fifth of every month.",
            "房租什么时候交？",
            "房东要求每月五号之前把钱转给他。",
        ),
        (
            "Which programming language does the team prefer?",
            "We agreed to write all new backend code in Rust.",
            "团队更喜欢用哪种编程语言？",
            "我们商量好新的后端代码都用 Rust 写。",
        ),
        (
            "Has the refund been paid?",
            "Order ORD-7781 was refunded in full this morning.",
            "退款到账了吗？",
            "订单 ORD-7781 今天早上已经全额退款。",
        ),
        (
            "What is the name of Tom's dog?",
            "My spaniel Biscuit chewed the sofa again.",
            "汤姆的狗叫什么名字？",
            "我家的小狗饼干又把沙发咬坏了。",
        ),
        (
            "How did the job interview go?",
            "They offered me the position of head nurse on the spot!",
            "面试结果怎么样？",
            "他们当场就让我当护士长了！",
        ),
        (
            "What instrument is Maria learning?",
            "I have cello lessons every Thursday evening now.",
            "玛丽亚在学什么乐器？",
            "我现在每周四晚上上大提琴课。",
        ),
        (
            "Why was the deployment rolled back?",
            "Release 4.2 leaked database connections, so we returned to 4.1.",
            "为什么回滚了上线？",
            "4.2 版本泄漏数据库连接，所以我们退回到 4.1。",
        ),
        (
            "Where are they going on holiday?",
            "We booked a cabin by a lake in Finland for August.",
            "他们去哪里度假？",
            "我们订了八月份芬兰湖边的小木屋。",
        ),
        (
            "What does he want for dinner?",
            "I am craving a bowl of spicy beef noodles tonight.",
            "他晚饭想吃什么？",
            "今晚特别想来一碗麻辣牛肉面。",
        ),
        (
            "Which seat does the passenger like?",
            "He always asks for an aisle seat near the front.",
            "乘客喜欢坐哪个位置？",
            "他每次都要前排靠过道的座位。",
        ),
        (
            "What happened to the car?",
            "A truck hit my hatchback at the crossing, the door is bent.",
            "车子怎么了？",
            "路口一辆卡车撞了我的车，车门都变形了。",
        ),
        (
            "How many children does Omar have?",
            "My twins start kindergarten and the eldest is nine.",
            "奥马尔有几个孩子？",
            "我的双胞胎要上幼儿园了，老大九岁。",
        ),
        (
            "What did the doctor prescribe?",
            "I have to take two tablets for my blood pressure each morning.",
            "医生开了什么药？",
            "我每天早上要吃两片降压药。",
        ),
        (
            "Which book impressed her?",
            "I could not put down that novel about the lighthouse keeper.",
            "哪本书让她印象深刻？",
            "那本写灯塔看守人的小说我一口气读完了。",
        ),
        (
            "What is the wifi password policy?",
            "Guests get a code that changes every night at midnight.",
            "无线网络密码有什么规定？",
            "访客的上网密码每天半夜自动更换。",
        ),
        (
            "Who won the chess tournament?",
            "Our club's youngest member beat the grandmaster in the final.",
            "象棋比赛谁赢了？",
            "俱乐部最小的队员在决赛里赢了特级大师。",
        ),
        (
            "What is she afraid of?",
            "Heights make me dizzy, I never look down from a balcony.",
            "她害怕什么？",
            "我恐高，站在阳台上从来不敢往下看。",
        ),
        (
            "How do they heat the house?",
            "We replaced the gas boiler by a heat pump in spring.",
            "他们家怎么取暖？",
            "春天我们把燃气锅炉换成了热泵。",
        ),
        (
            "What went wrong at the wedding?",
            "It poured during the ceremony and the cake slid off its table.",
            "婚礼上出了什么岔子？",
            "仪式中间下起暴雨，蛋糕还从桌上滑了下来。",
        ),
        (
            "What language does the caller speak?",
            "Please write to me in Portuguese, my English is poor.",
            "来电的人说什么语言？",
            "请用葡萄牙语给我写信，我英语不好。",
        ),
        (
            "How did he quit smoking?",
            "Chewing gum and long walks got me off cigarettes after twenty years.",
            "他是怎么戒烟的？",
            "抽了二十年烟，靠口香糖和散步总算戒掉了。",
        ),
        (
            "Which invoice is still open?",
            "Number 2231 from the printing company has not been settled.",
            "哪张发票还没付？",
            "印刷公司的 2231 号账单还没有结清。",
        ),
        (
            "What does Lena collect?",
            "I found two more stamps from Iceland for my album.",
            "莱娜收藏什么？",
            "我又找到两张冰岛邮票放进集邮册。",
        ),
        (
            "What is growing in the garden?",
            "The tomatoes are ripe and the beans have reached the roof.",
            "院子里种了什么？",
            "西红柿熟了，豆角都爬到屋顶了。",
        ),
        (
            "Why is the student tired?",
            "I stayed up until four to finish my thesis.",
            "学生为什么很累？",
            "为了赶论文，我熬到凌晨四点。",
        ),
        (
            "What did grandmother give her?",
            "She passed her pearl necklace on to me for my graduation.",
            "奶奶送了她什么？",
            "毕业的时候奶奶把她的珍珠项链给了我。",
        ),
        (
            "How should reports be formatted?",
            "The manager wants one page with a chart and no jargon.",
            "报告要用什么格式？",
            "经理要求一页纸，带图表，不要术语。",
        ),
        (
            "What sport hurt his knee?",
            "I tore a ligament skiing down the black slope.",
            "他做什么运动伤了膝盖？",
            "我滑雪下黑道的时候韧带撕裂了。",
        ),
    )
)
"""Each told by someone on some day, as memories are."""

NONSENSE: Final = (
    "qwzx plorf vanting grusk",
    "asdkjh qwoeiu zxmnb",
    "xkcd0 0x7f fnord blarg",
    "the colourless ideas of a furious triangle",
    "boiling point of tungsten at two atmospheres",
    "prove that the square root of two is irrational",
    "capital gains tax on inherited vineyards in Moldova",
    "torque curve of a two-stroke marine diesel",
    "phonology of reconstructed Proto-Uralic",
    "how to calibrate a mass spectrometer",
    "嗯啊哦呃噗",
    "锟斤拷烫烫烫",
    "钨在两个大气压下的沸点",
    "证明根号二是无理数",
    "船用柴油机的扭矩曲线",
    "甲骨文的音韵构拟",
)
"""What no personal memory answers: for checking that the best of a pool stays irrelevant."""
