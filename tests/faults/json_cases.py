"""JSON texts that a parser must take (y_), must refuse (n_), or may do either with (i_), and mutations of good ones beside a plain
recogniser of RFC 8259. Written for this suite, by the classes of JSONTestSuite (which no package of Debian or PyPI carries)."""
import random
import re

DEPTH, VALUES = 64, 1000000

Y = {
    "array": ["[]", "[[]]", '[""]', "[ 1]", "[1 ]", "[1\n]", "[1,null,\"1\",{}]", "[null,null]", "[[],[[]]]", "[\t]", "[\r\n]"],
    "object": ["{}", '{"":0}', '{"a":[]}', '{"a":{}}', '{"a\\u0000b":1}', '{"a":"b","c":"d"}', '{"\\ud834\\udd1e":1}', '{ "a" : 1 }', '{"a":\n1}',
               '{"a":1,"b":2,"c":{"a":1}}', '{"long key %s":1}' % ("x" * 200)],
    "number": ["0", "-0", "1", "-1", "123", "1.5", "-1.5", "0.1", "0e1", "0E1", "0e+1", "0e-1", "1E22", "1e+2", "1e-2", "1E-2", "123.456e78", "1.0", "-0.0",
               "0.000000000000000000000000000000000000000000000000000000001", "10", "100000000000000000000", "9007199254740993", "2e-5", "123e65", "20e1"],
    "string": ['""', '"a"', '"\\""', '"\\\\"', '"\\/"', '"\\b\\f\\n\\r\\t"', '"\\u0060\\u012a\\u12AB"', '"\\uD801\\udc37"', '"\\ud83d\\ude39\\ud83d\\udc8d"', '"\\u0000"',
               '"\\u002c"', '"\\uFFFF"', '"\\uFDD0"', '"\\u200B"', '"\\u2064"', '"\\u0022"', '"\\u005C"', '"\\u00A66"', '"/"', '"asd "', '" "', '"€𝄞"', '"\u2028"', '"\u2029"', '"\x7f"',
               '"\U0010ffff"', '"\uffff"', '"\ue000"', '"a/*b*/c/*d//e"', '"\\\\a"', '"\\\\n"', '"new\\u00A0line"', '"\\uDBFF\\uDFFF"', '"' + "x" * 20000 + '"'],
    "literal": ["true", "false", "null", "[true]", "[false]", "[null]"],
    "space": [" 1", "1 ", "\n1\t", " [ ] ", "\r\n{\r\n}\r\n", "\t\t\t1"],
}
N = {
    "array": ["[", "]", "[1", "[1,", "[,1]", "[1,]", "[1,,2]", "[,]", "[1 2]", "[1 true]", '["a" "b"]', '["": 1]', "[3[4]]", "[x", "[*]", "[1,\n1\n,1", "[][]", "[1]]", "[\x0ca]", "[\"\x0ba\"\\f]",
              "[-]", "[\"a\",\n4\n,1,", "[a", "[,\"\"]", "[\"\",]", "[1:2]", "[\"x\"", "[\"x\"]]", "[fals]", "[nul]", "[tru]", "[True]", "[NULL]", "[<null>]", "[\u2060]", "[\ufeff]", "[1}", "[{]", "[1;2]", "[\x00]"],
    "object": ["{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}", "{,\"a\":1}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "{\"a\":1,,\"b\":2}", "{a:1}", "{'a':1}", "{1:1}", "{\"a\"::1}", "{\"a\":1:2}", "{\"a\",1}",
               "{[:1}", "{\"a\":1}#", "{\"a\":1}/**/", "{\"a\":1}//", "{\"a\":1}/", "{\"a\":/*c*/1}", "{:1}", "{\"x\",null}", "{null:null}", "{9999E9999:1}", "{\"\":", "{\"a\":\"b\"}}", "{\"a\":1]", "{\"a\":\"a", "{\"a\" b}",
               "{\"a\":a}", "{key: 'value'}", "{\"a\":\"b\",\"a\"}", "{\"id\":0,,,,,}", "{}}", "{\"\\uD800", "{true:1}", "{\"a\":true,}", "{💩:1}"],
    "number": ["+1", "-", "+", "01", "-01", "00", "1.", ".1", "-.1", "1.e1", ".e1", "1e", "1e+", "1e-", "1eE2", "1e1.5", "1.2.3", "1.2a-3", "0x1", "0x42", "0b1", "0o7", "1_000", "1 000.0", "NaN", "-NaN", "Infinity", "-Infinity", "Inf", "infinity",
               "-inf", "++1", "--1", "-1.0.", "1+2", "2.e3", "2.e+3", "2.e-3", "0.e1", "0.3e", "0.3e+", "0e", "0E+", "1.0e", "1.0e-", "-2.", "- 1", "-foo", "-1x", "1ea", "012", "-012", "1,000", "１", "0.1.2", "1e1e1", "1\u0661", "1a", "1/0", "$1", "1%"],
    "string": ['"', '"a', '"\\', '"\\"', '"\\u', '"\\u1', '"\\u12', '"\\u123', '"\\u123g"', '"\\x00"', '"\\a"', '"\\v"', '"\\0"', '"\\\'"', "'a'", "`a`", '"\n"', '"\t"', '"\r"', '"\x00"', '"\x1f"', '"\x08"', '"a\x01b"', '"\\U00012345"', '"\\ "',
               '"\\🌀"', 'a', '“a”', '"a"b', '"a""b"', '"\\uD800\\u"', '"\\uD800\\u1"', '"\\u D801"', '"\\\x00"', '\\u0020"a"', '"\\N"', '"\\e"', '"\\8"', '"', "\\n", '"a\\'],
    "literal": ["True", "TRUE", "tru", "truee", "nul", "nulll", "None", "undefined", "fals", "true false", "truetrue", "t", "nan", "null,", "yes"],
    "structure": ["", " ", "\x0c1", "\x0b1", "\u00a01", "1\u00a0", "\u2003 1", "\ufeff1", "1#", "//c\n1", "/*c*/1", "#c\n1", "1//", "1 1", "{}[]", "<.>", "<null>", "&1", "@", "*", "^", "(1)", ";", "1;", ",", ":", "\\", "å", "1,", ",1", "!1", "=1", "`1`", "1\x00", "\x001",
                  "[" * 70, "[" * 100000, "{\"\":" * 3000, "[{\"\":" * 3000, "[" * 65 + "]" * 64],
}
I = {
    "number": ["1e400", "-1e400", "1e-400", "123123e100000", "0.4e00669999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999969999999006", "1" * 400, "-" + "9" * 30, "1.5e9999", "-1e-9999"],
    "string": ['"\\uD800"', '"\\uDADA"', '"\\uDFAA"', '"\\uD800\\n"', '"\\uD800\\uD800\\n"', '"\\uD888\\u1234"', '"\\uDd1e\\uD834"', '"\\uD800abc"', '"\\ud800\\u0041"', '"\\uDd1ea"'],
    "structure": ["[" * 60 + "]" * 60, "[" * 64 + "]" * 64, "[" * 500 + "]" * 500],
}
# Bytes that are no UTF-8: a text of this API is UTF-8.
N_BYTES = {"not_utf8": [b'"\xff"', b'"\xe5"', b'"\x80"', b'"\xc0\xaf"', b'"\xe0\xff"', b'"\xed\xa0\x80"', b'"\xf4\xbf\xbf\xbf"', b'"\xfc\x80\x80\x80\x80\x80"', b'"\x81"', b'"\xf0\x80\x80\x80"', b"[\xe5]", b"{\"\xb9\":\"0\"}", b"\xff\xfe1\x00",
                         b'"\xe6\x97\xa5\xd1\x88\xfa"', b"1\xe5", b"0e1\xe5", b"\xe9", b'"\\u\xe5"', b'"\\\xe5"']}


def written():
    for letter, table in (("y", Y), ("n", N), ("i", I)):
        for kind, texts in table.items():
            for number, text in enumerate(texts):
                yield f"{letter}_{kind}_{number}", text.encode("utf-8", "surrogatepass")
    for kind, texts in N_BYTES.items():
        for number, text in enumerate(texts):
            yield f"n_{kind}_{number}", text


SPACE = rb"[ \t\n\r]*"
SCALAR = re.compile(rb'(?:true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?'
                    rb'|"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")')
SPACES = re.compile(SPACE)


def valid(data):
    """Whether bytes are one JSON value (RFC 8259), in UTF-8. A stack instead of recursion; what is expected next is one of four words."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    stack, expect, at = [], "value", 0
    while True:
        at = SPACES.match(data, at).end()
        if at == len(data):
            return not stack and expect == "end"
        byte = data[at:at + 1]
        if expect in ("value", "value or ]"):
            if byte == b"[":
                stack.append("]")
                expect, at = "value or ]", at + 1
                continue
            if byte == b"{":
                stack.append("}")
                expect, at = "key or }", at + 1
                continue
            if byte == b"]" and expect == "value or ]":
                stack.pop()
                at += 1
            else:
                scalar = SCALAR.match(data, at)
                if scalar is None:
                    return False
                at = scalar.end()
            expect = "more" if stack else "end"
        elif expect in ("key", "key or }"):
            if byte == b"}" and expect == "key or }":
                stack.pop()
                expect, at = "more" if stack else "end", at + 1
                continue
            key = SCALAR.match(data, at)
            if key is None or byte != b'"':
                return False
            at = SPACES.match(data, key.end()).end()
            if data[at:at + 1] != b":":
                return False
            expect, at = "value", at + 1
        elif expect == "more":
            if byte == b",":
                expect = "value" if stack[-1] == "]" else "key"
            elif byte == stack[-1].encode():
                stack.pop()
                expect = "more" if stack else "end"
            else:
                return False
            at += 1
        else:
            return False


def beyond_limits(data):
    """What a valid text may be refused for by a documented limit: depth, a name twice, numbers that no double holds, lone surrogates."""
    depth = deepest = 0
    for byte in re.sub(rb'"(?:[^"\\]|\\.)*"', b"", data):
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    data = re.sub(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}", b"", data)  # a whole pair
    names = re.findall(rb'"((?:[^"\\]|\\.)*)"\s*:', data)
    return (deepest >= DEPTH - 1 or len(names) != len(set(names)) or re.search(rb"[eE][+-]?[0-9]{3}|[0-9]{300}", data) is not None
            or re.search(rb"\\u[dD][89a-fA-F]", data) is not None)


def mutated(count):
    """Good texts with one to three bytes changed, put in or taken out: most are broken, and some are not."""
    chance = random.Random(1)
    good = [text.encode() for texts in Y.values() for text in texts if len(text) < 300]
    spice = [bytes([byte]) for byte in b'[]{}:,"\\0123456789.eE+-tfn \n/\x00\x1f\x7f'] + [b"\xc3", b"\xa9", b"\\u", b"\\ud834", b"true", b"null", b'""']
    for number in range(count):
        data = chance.choice(good)
        if chance.random() < 0.3:
            data = b"[" + data + b"," + chance.choice(good) + b"]"
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data) + 1)
            what = chance.randrange(3)
            data = data[:at] + (chance.choice(spice) if what else b"") + data[at + (what != 1):]
        # A text that closes the object around it and opens another field is good there.
        if b"}" in data and not valid(data) and valid(b'{"prompt":"a","x":' + data + b"}"):
            continue
        yield f"mutated {number}", data
