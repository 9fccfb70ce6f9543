"""How much a memory matters, 0..1: what a language model's answer says of it, and a cheap guess without one.

A model is asked for a number from 1 to 10, as J. S. Park et al. do in "Generative Agents" (2023), section 4.1. It is
mapped to `(number - 1) / 9`: 1 is 0, 10 is 1. What is not surely such a number is refused, never bent into one.
"""

import re
import unicodedata
from typing import Final, Literal

LONGEST_ANSWER: Final = 2_000
"""Code points, without thoughts and white space. Nobody who was asked for a number says more."""

ImportanceFault = Literal["no_number", "out_of_range", "contradicting"]


class UnclearImportance(ValueError):
    """An answer that says no number from 1 to 10, or more than one.

    Attributes:
        fault: Which of these it is.
    """

    def __init__(self, fault: ImportanceFault) -> None:
        super().__init__(fault)
        self.fault: ImportanceFault = fault


_N: Final = r"(?<![A-Za-z0-9_.])[-−]?\d+(?:\.\d+)?(?![\d%]|\.\d|[A-Za-z_])"
_TO: Final = r"\s*(?:-|–|—|~|to|or|and|/|到|至|或)\s*"
_LABEL: Final = (
    r"(?:importance|rating|rate|score|重要性|重要度|评分|分数|得分|打分|评为|给出?|为)[\"'”]?"
    r"(?:\s*(?:[:=：]|is|of|it|this|would be|as|at|an|a|the|memory|score|rating|是|为|应为|评分|打|给))*+[\s\"'*]*+"
)
_THOUGHT: Final = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_SPACES: Final = re.compile(r"\s+")
_SCALE: Final = re.compile(
    r"(?<![\d.])1\s*(?:-|–|—|~|to|\.\.+|到|至)\s*10(?![\d.])|10\s*分制|满分\s*(?:为|是)?\s*10\s*分?", re.IGNORECASE
)
_OF_TEN: Final = re.compile(
    rf"(?:({_N}){_TO})?({_N})\s*(?:分)?\s*(?:/|out of|of)\s*10(?![\d]|\.\d)(?:\.0+)?", re.IGNORECASE
)
_OF_OTHER: Final = re.compile(r"\d\s*(?:/|out of)\s*(?!10(?!\d))\d|\d\s*%", re.IGNORECASE)
_LABELLED: Final = re.compile(rf"{_LABEL}({_N})(?:{_TO}({_N}))?", re.IGNORECASE)
_ALONE: Final = re.compile(rf"^[\s*_`\"'(\[{{]*({_N})\s*分?[\s*_`\"'.,;:!。，)\]}}]*$", re.MULTILINE)
_ANY: Final = re.compile(_N)

_DIGITS: Final = {"零": 0, "一": 1, "二": 2, "两": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9}
_HAN: Final = "[零一二两三四五六七八九十百]+"
_HAN_SAID: Final = re.compile(
    rf"^\W*({_HAN})\s*分?\W*$|(?:重要性|重要度|评分|分数|得分|打分|评为|给出?)\s*[:：]?\s*(?:是|为|应为)?\s*({_HAN})"
    rf"|({_HAN})\s*分(?!\w)"
)
_WORDS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORD: Final = "|".join(_WORDS)
_WORD_SAID: Final = re.compile(
    rf"^\W*({_WORD})\W*$|\b({_WORD})\s*(?:/|out of)\s*(?:ten|10)\b"
    rf"|\b(?:importance|rating|score)\s*(?:[:=]|is|of)*\s*({_WORD})\b",
    re.IGNORECASE,
)


def importance_of(answer: str) -> float:
    """The importance, 0..1, that a model's answer gives as a number from 1 to 10.

    Taken are figures of any width, English and Chinese numerals, `8/10`, `Importance: 8`, and one number within prose.
    What is said most plainly counts: a number out of ten or behind a label, else one on a line of its own, else the
    only one there is.

    Raises:
        UnclearImportance: There is none, it is not from 1 to 10, or there are several.
    """
    text = unicodedata.normalize("NFKC", without_thoughts(answer)).replace("\N{FRACTION SLASH}", "/")
    # Some models repeat one character until they are stopped, and what is below looks far ahead from each.
    text = "\n".join(_SPACES.sub(" ", line.strip()) for line in text.split("\n") if line.strip())
    if len(text) > LONGEST_ANSWER:
        raise UnclearImportance("no_number")
    number = _only(_numbers(text))
    if not 1 <= number <= 10:
        raise UnclearImportance("out_of_range")
    return round((number - 1) / 9, 4)


def without_thoughts(answer: str) -> str:
    """A model's answer without what it has said to itself, between `<think>` and `</think>`; linear in its length."""
    kept: list[str] = []
    at, opened = 0, None
    for mark in _THOUGHT.finditer(answer):
        if not mark[1] and opened is None:
            opened = mark.start()
        elif mark[1] and opened is not None:
            kept.append(answer[at:opened])
            at, opened = mark.end(), None
    return " ".join([*kept, answer[at:]])


def _numbers(text: str) -> set[float]:
    said = _groups(_OF_TEN, text)
    text = _SCALE.sub(" ", text)
    said |= _groups(_LABELLED, _OF_TEN.sub(" ", text))
    if said:
        return said
    if _OF_OTHER.search(text):
        raise UnclearImportance("out_of_range")
    found = _groups(_ALONE, text) or {_figure(number) for number in _ANY.findall(text)}
    return found or {_numeral(word) for pattern in (_HAN_SAID, _WORD_SAID) for word in _said(pattern, text)}


def _only(numbers: set[float]) -> float:
    if not numbers:
        raise UnclearImportance("no_number")
    if len(numbers) > 1:
        raise UnclearImportance("contradicting")
    return next(iter(numbers))


def _groups(pattern: re.Pattern[str], text: str) -> set[float]:
    return {_figure(number) for number in _said(pattern, text)}


def _said(pattern: re.Pattern[str], text: str) -> list[str]:
    return [group for match in pattern.finditer(text) for group in match.groups() if group]


def _figure(text: str) -> float:
    return float(text.replace("−", "-"))


def _numeral(word: str) -> float:
    """A numeral's value; 11 for any that is more than ten."""
    if word.lower() in _WORDS:
        return _WORDS.index(word.lower())
    return 10 if word == "十" else _DIGITS.get(word, 11)


_NAME: Final = re.compile(r"(?<![.!?\n] )(?<!^)\b(?!I\b)[A-Z][a-z]+(?: [A-Z][a-z]+)*")
_NUMBER: Final = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|dozen|hundred|thousand)\b"
    r"|[一二两三四五六七八九十百千万]+(?:个|年|月|日|号|岁|次|块|元|点|天|周)",
    re.IGNORECASE,
)
_DATE: Final = re.compile(
    r"\b(?:january|february|march|april|may|june|july|august|september|october|november|december|monday|tuesday"
    r"|wednesday|thursday|friday|saturday|sunday|yesterday|tomorrow|tonight|birthday|anniversary|since"
    r"|(?:last|next|this) (?:week|weekend|month|year|summer|winter|spring|fall|night)|(?:weeks?|months?|years?) ago)\b"
    r"|昨天|明天|后天|今年|去年|明年|上周|下周|上个月|下个月|生日|纪念日|小时候|星期[一二三四五六日天]|周[一二三四五六日末]",
    re.IGNORECASE,
)
_PREFERENCE: Final = re.compile(
    r"\b(?:prefer\w*|favou?rite|love|hate|dislike|enjoy\w*|allerg\w+|can't stand|always|never|passionate|interested in"
    r"|fan of|afraid of)\b|喜欢|讨厌|最爱|偏好|爱好|过敏|害怕|从不|总是|不喜欢|不吃|习惯",
    re.IGNORECASE,
)
_DECISION: Final = re.compile(
    r"\b(?:decided?|chose|choose|plan\w*|going to|agreed?|promised?|will|must|have to|need to|should|deadline|due"
    r"|remember|remind|appointment|schedule\w*|goal|dream of|signed up|applied)\b"
    r"|决定|打算|计划|准备|约定|答应|必须|需要|应该|记得|提醒|截止|预约|目标|报名",
    re.IGNORECASE,
)
_EVENT: Final = re.compile(
    r"\b(?:moved|married|divorced?|born|died|passed away|pregnant|diagnosed|hospital|graduated?|hired|fired|promoted"
    r"|job|interview|retired|won|lost|bought|sold|adopted?|started|finished|joined|met|visited|travell?ed|trip|wrote"
    r"|painted|made|went|got|took|lives?|work(?:s|ed|ing)? (?:at|as|for|in)|named|called)\b"
    r"|搬家|搬到|结婚|离婚|出生|去世|怀孕|确诊|住院|毕业|入职|辞职|升职|工作|面试|退休|获奖|买了|卖了|开始|参加|去了|旅行"
    r"|住在|名叫|叫做|认识|学会",
    re.IGNORECASE,
)
_SELF: Final = re.compile(
    r"\b(?:my|our|I'm|I am|I've|I have|I was|I had|we've|we're|we went)\b|我的|我们|我是|我有|我在", re.IGNORECASE
)
_SMALLTALK: Final = re.compile(
    r"^\W*(?:hi|hey|hello|thanks?|thank you|ok(?:ay)?|bye|goodbye|see you|take care|haha\w*|lol|wow|cool|great|nice"
    r"|awesome|sure|yeah|yes|no problem|sounds (?:good|great)|congrat\w*|good (?:morning|night|luck|job)|that's \w+"
    r"|absolutely|definitely|glad|you're welcome)\b"
    r"|^\W*(?:你好|您好|嗨|谢谢|好的|好吧|再见|拜拜|哈哈|嗯|哦|是的|对的|没问题|早上好|晚安|加油|恭喜|不客气)",
    re.IGNORECASE,
)


def guess_importance(content: str) -> float:
    """A guess at how much a text matters, 0..1, from its words alone; the same for the same text.

    It begins at 0.25. What raises it: numbers (0.08) and dates (0.10), up to three names (0.04 each), words of
    preference (0.08), of decisions and obligations (0.05), of what happens in a life (0.12), speaking of oneself
    (0.08), and length: up to 0.24, at 60 words or 120 Chinese characters. What lowers it: ending in a question (0.12),
    and beginning with a greeting, thanks or agreement (0.10, and 0.10 more where there are less than 8 words). Words
    are English and Chinese; of other languages it sees figures, names and length.
    """
    text = unicodedata.normalize("NFKC", content[:4_000]).strip().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    han = sum("\u4e00" <= character <= "\u9fff" for character in text)
    words = len(text.split()) + han / 2
    score = 0.25 + 0.24 * min(words, 60) / 60
    for pattern, weight in (
        (_NUMBER, 0.08),
        (_DATE, 0.10),
        (_PREFERENCE, 0.08),
        (_DECISION, 0.05),
        (_EVENT, 0.12),
        (_SELF, 0.08),
    ):
        if pattern.search(text):
            score += weight
    score += 0.04 * min(3, len(set(_NAME.findall(text))))
    if text.endswith(("?", "吗", "呢")):
        score -= 0.12
    if _SMALLTALK.search(text):
        score -= 0.10 if words >= 8 else 0.20
    return round(min(1.0, max(0.0, score)), 4)
