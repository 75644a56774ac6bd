"""Writes tests/golden/template_*.json: what jinja2, set up as transformers does it, makes of
small templates (template_expressions.json) and of chat templates over conversations
(template_chats.json).

Usage: template_goldens.py GOLDEN_DIR
A null in place of the text says that jinja2 refuses. The chat templates are written for these tests;
they exercise the constructs of the templates that models ship.
"""
import copy
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

NOW = 1767323045  # 2026-01-02 03:04:05 UTC


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2026, 1, 2, 3, 4, 5)


chat_template_utils.datetime = Clock

CONTEXT = {
    "t": "Hello World", "e": "", "u": "Grüße, 世界 🙂", "q": "it's \"quoted\"", "w": "  a  b\tc \n",
    "lines": "one\ntwo\r\nthree\n", "csv": "a,b,,c", "i": 7, "n": -3, "z": 0, "f": 2.5, "g": 1e20,
    "h": 0.1, "yes": True, "no": False, "nil": None, "xs": [3, 1, 2], "ss": ["b", "A", "c", "a"],
    "mixed": [1, "a", None, True, 2.5, [1, 2], {"k": "v"}], "none": [],
    "d": {"b": 1, "a": 2, "C": 3}, "nested": {"a": {"b": [10, {"c": "deep"}]}, "items": "shadow"},
    "users": [{"name": "Ann", "age": 30, "ok": True}, {"name": "bob", "age": 25, "ok": False},
              {"name": "Cy", "age": 30}],
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                 {"role": "assistant", "content": "A", "tool_calls": [{"name": "f"}]}],
}

# Each line is a template; {} marks an expression that is printed.
EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
7 // 2
-7 // 2
7 // -2
-7 % 3
7 % -3
7 / 2
6 / 3
2 ** 10
2 ** -1
-2 ** 2
2 ** 3 ** 2
7.5 // 2
-7.5 % 2
1 / 0
1 // 0
1.0 % 0
i + f
yes + 1
'a' + 'b'
'a' + 1
1 + 'a'
'ab' * 3
3 * 'ab'
'ab' * -1
[1, 2] * 2
[1] + [2, 3]
(1, 2) + (3,)
[1] + (2,)
'a' ~ 1 ~ none ~ true ~ 2.0 ~ [1, 'x']
1 ~ 2 + 3
1 + 2 ~ 3
-i
+i
-t
--i
- -i
9223372036854775807
-9223372036854775807
0x1F
0b101
0o17
1_000_000
1e3
1.5e-7
1_0.5
12345678901234567.0
123456789012345680.0
1e16
1e15
0.1 + 0.2
1e22
1e-5
0.0001
1/3
100.0
1e100
5e-324
1.7976931348623157e308
-0.0
h
g
f
1 == 1.0
true == 1
'1' == 1
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
none == false
missing == missing2
1 < 2
1 < 2 < 3
1 < 3 < 2
3 > 2 > 1 > 0
1 < 'a'
'a' < 'b'
'Z' < 'a'
'a' < 'ab'
[1, 2] < [1, 3]
none < 1
1 <= 1.0 >= 1
1 != 2
2 in xs
5 in xs
5 not in xs
not 5 in xs
'a' in 'cat'
'' in 'cat'
1 in 'cat'
'b' in d
'x' in d
1 in missing
1 in i
'a' in ('a', 'b')
xs in [[3, 1, 2]]
true and false
true or false
not true
1 and 2
0 and 2
0 or 'x'
'' or none
none and missing.x
1 or missing.x
not missing
'yes' if i > 5 else 'no'
'yes' if i > 9 else 'no'
'yes' if i > 9
'a' if false else 'b' if false else 'c'
('a' if true else 'b') ~ 'c'
missing
missing.attr
missing['x']
missing()
missing + 1
missing ~ 'x'
missing < 1
nil
nil.x
nil['x']
nil + 1
t.missing
t.missing.more
d.missing
d.missing.more
d['missing']
d.b
d['b']
d.get('b')
d.get('x')
d.get('x', 'dflt')
d.get('x', default=1)
d.items()
d.keys()
d.values()
d.items() | list
d.keys() | list | join(',')
d | list
d | length
d.items() | length
nested.a.b[1].c
nested['a']['b'][0]
nested.a['b'][-1]['c']
nested['items']
nested.items() | length
xs[0]
xs[-1]
xs[5]
xs[-5]
xs['x']
xs[1:]
xs[:1]
xs[::-1]
xs[-2:]
xs[5:]
xs[1:2]
xs[::2]
xs[::0]
xs[none:2]
xs[2:0:-1]
xs[:-1]
xs[-100:100]
xs.0
mixed[5][1]
mixed[6].k
t[0]
t[-1]
t[1:4]
t[::-1]
t[::3]
t[10:2:-2]
t[100]
t[:100]
u[0]
u[7]
u[-1]
u[2:4]
u[::-1]
u | length
u[7:9] ~ '|' ~ u[-3:]
'abc'[1]
(1, 2, 3)[1:]
range(10)[2:8:3]
range(10)[2:8:3] | list
range(5)
range(5) | list
range(2, 5) | list
range(5, 0, -2) | list
range(0) | list
range(1, 2, 0)
range(3)[1]
range(100001)
range(10, 0, -3)
range(3) | length
range(3) | last
range('a')
d[['x']]
d[1:2]
{'a': 1, 'b': [1, 2], 3: none}
{}
[]
()
(1,)
(1, 2)
(1)
[1, [2, [3]]]
['a', "b'c", 'd"e', 'f\'"g', 'h\\i', 'j\nk\tl', 'é', '\u200b', '\x7f', '\x00', '🙂', '\u3000']
[true, none, 1.0, 1e100, -0.0]
{'k': ('x',), 'l': {}}
{'a': 1, 'a': 2}
[missing]
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1), ('b', 2)])
dict()
'a\nb\\c\x41\u00e9\U0001F600\101\q\'\"'
"tab\there"
'con' 'cat' "ted"
'\
x'
t.upper()
t.lower()
t.title()
t.swapcase()
t.capitalize()
'hELLO wORLD'.capitalize()
"they're bill's friends".title()
'ß'.upper()
'ﬁx'.title()
'ǆ'.title()
'ǆ'.upper()
'ა'.capitalize()
'ÀÉ'.lower()
'İ'.lower() | length
w.strip()
w.lstrip()
w.rstrip()
'xxaxx'.strip('x')
'xyaxy'.strip('yx')
'xyaxy'.lstrip('x')
'xyaxy'.rstrip('y')
'éaé'.strip('é')
''.strip()
'\u00a0a\u2003'.strip()
t.split()
w.split()
csv.split(',')
csv.split(',', 1)
csv.split(',', maxsplit=2)
csv.rsplit(',', 1)
csv.rsplit(',')
csv.split('')
csv.split(',,')
'a b c'.split(' ', -1)
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
' a  b c '.rsplit(none, 0)
' a  b c '.split(none, 0)
' a b c d '.rsplit(maxsplit=2)
''.split()
''.split(',')
'<think>x</think>y'.split('</think>')[-1]
'<think>x</think>y'.split('</think>')[0].split('<think>')[-1].strip('\n')
lines.splitlines()
lines.splitlines(true)
'a\x0bb\x85c\u2028d'.splitlines()
t.startswith('Hello')
t.startswith('World')
t.startswith('World', 6)
t.startswith(('x', 'He'))
t.startswith('')
t.startswith('lo', 3, 5)
t.endswith('ld')
t.endswith(('x', 'ld'))
t.endswith('o', 0, 5)
t.endswith(1)
t.find('o')
t.find('o', 5)
t.find('z')
t.rfind('o')
t.rfind('o', 0, 6)
t.index('W')
t.index('z')
u.find('世')
u.find('')
u.rfind('🙂')
u.index('ß')
t.count('o')
t.count('')
'aaaa'.count('aa')
t.count('l', 0, 4)
t.replace('o', '0')
t.replace('o', '0', 1)
t.replace('', '-')
t.replace('', '-', 3)
'ééé'.replace('é', 'e', 2)
t.replace('zzz', 'y')
t.join(['a', 'b'])
', '.join(ss)
', '.join([1])
', '.join('abc')
'-'.join([])
t.center(21, '*')
'ab'.center(5)
'abc'.center(6)
'ab'.ljust(5, '.')
'ab'.rjust(5)
'42'.zfill(5)
'-42'.zfill(5)
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.rpartition('-')
'123'.isdigit()
'12a'.isdigit()
''.isdigit()
'²'.isdigit()
'²'.isdecimal()
'½'.isnumeric()
'abc'.isalpha()
'世界'.isalpha()
'ab1'.isalnum()
' \t'.isspace()
'AB'.isupper()
'aB'.isupper()
'12'.isupper()
'ab1'.islower()
'abc'.isascii()
'é'.isascii()
''.isascii()
'a\n'.isprintable()
t.nope()
t.append('x')
xs.append(4)
xs.count(1)
xs.index(2)
xs.index(9)
xs.pop()
d.pop('a')
d.update({})
d.copy()
(1, 1).count(1)
'{} {}'.format(1, 'a')
'{0} {1} {0}'.format('a', 'b')
'{x}-{y[0]}-{z.b}'.format(x=1, y=xs, z=d)
'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')
'{:05d} {:+d} {:,} {:x} {:#X} {:b}'.format(42, 42, 1234567, 255, 255, 5)
'{:.2f} {:8.3f} {:e} {:g} {:%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.5)
'{:.3} {:*^9}'.format('abcdef', 'mid')
'{!r} {!s}'.format('a', 'b')
'{{}} {}'.format(1)
'{}'.format()
'{'.format(1)
'{:d}'.format('a')
'{:.1f}'.format(1)
'{:.4}'.format(3.14159)
'{:10.4}|'.format(2.0)
'%s and %s' % ('a', 1)
'%d%%' % 42
'%5d|%-5d|%05d|%+d' % (42, 42, 42, 42)
'%.2f %e %g' % (3.14159, 12345.678, 0.00001)
'%x %X %o %#x' % (255, 255, 8, 255)
'%r %s' % ('a', [1, 'b'])
'%s' % none
'%(a)s-%(b)d' % {'a': 1, 'b': 2}
'%s %s' % ('a',)
'%s' % ('a', 'b')
'%d' % 'a'
'%c%c' % ('a', 66)
'%.3s|%5s|%-5s|' % ('abcdef', 'ab', 'ab')
'%s' % xs
'%.3d' % 5
'%d' % 3.9
'%q' % 1
t | upper
t | lower
i | upper
none | upper
missing | upper
t | title
"o'neil-smith (jr) [x] {y} <z>" | title
t | capitalize
w | trim
w | trim('\n ')
none | trim
missing | trim | length
xs | length
t | length
e | length
d | count
i | length
none | length
missing | length
xs | first
none | first
[] | first
[] | first | default('x')
'abc' | first
'abc' | last
xs | last
d | first
d | last
missing | first
xs | join
xs | join(', ')
xs | join(1)
mixed | join('|')
users | join(', ', attribute='name')
users | map(attribute='name') | join(',')
users | map(attribute='ok', default='?') | list
users | map(attribute='missing') | list | length
users | map('length') | list
ss | map('upper') | list
ss | map('replace', 'a', 'z') | list
ss | map('nope') | list
xs | map('string') | join
xs | map | list
users | selectattr('ok') | list | length
users | selectattr('ok', 'defined') | map(attribute='name') | list
users | selectattr('age', 'equalto', 30) | map(attribute='name') | list
users | selectattr('age', '==', 25) | map(attribute='name') | first
users | selectattr('age', 'gt', 26) | list | count
users | selectattr('name', 'in', ['Ann', 'Cy']) | map(attribute='name') | join
users | rejectattr('age', 'equalto', 30) | map(attribute='name') | list
users | rejectattr('ok') | map(attribute='name') | list
messages | selectattr('role', 'equalto', 'system') | list
messages | selectattr('tool_calls', 'defined') | list | length
messages | rejectattr('role', 'equalto', 'system') | list | length
xs | select('odd') | list
xs | select('>', 1) | list
xs | reject('odd') | list
[0, 1, '', 'a'] | select | list
[0, 1, '', 'a'] | reject | list
xs | select('nope') | list
missing | select | list
xs | sort
xs | sort(reverse=true)
ss | sort
ss | sort(case_sensitive=true)
ss | sort(true)
users | sort(attribute='age') | map(attribute='name') | list
users | sort(attribute='age,name', reverse=true) | map(attribute='name') | list
mixed | sort
'hello' | sort
xs | reverse | list
'abc' | reverse
'añ🙂' | reverse
ss | unique | list
['a', 'A', 'b', 'a'] | unique | list
['a', 'A'] | unique(true) | list
users | unique(attribute='age') | map(attribute='name') | list
xs | min
xs | max
ss | min
ss | max
users | max(attribute='age')
[] | max
xs | sum
users | sum(attribute='age')
xs | sum(start=10)
[1.5, 2] | sum
'abc' | list
d | items | list
missing | items | list
d | dictsort
d | dictsort(true)
d | dictsort(by='value')
d | dictsort(reverse=true)
d | dictsort(by='x')
xs | batch(2) | list
xs | batch(2, 'x') | list
range(7) | slice(3) | list
range(7) | slice(3, 'x') | list
missing | default('d')
none | default('d')
none | default('d', true)
'' | default('d')
'' | default('d', boolean=true)
e | d('x', true)
missing | default
t | replace('o', '0')
t | replace('o', '0', 1)
i | replace('7', '8')
t | replace('l', '')
t | string
i | string
mixed | string
none | string
'42' | int
'42.7' | int
'x' | int
'x' | int(5)
'x' | int(default=6)
' 12 ' | int
'-7' | int
'0x1f' | int
'0x1f' | int(base=16)
'ff' | int(0, 16)
'0b11' | int(0, 2)
'1_000' | int
'1e3' | int
3.9 | int
-3.9 | int
true | int
none | int
none | int(1)
xs | int
missing | int
'3.5' | float
'x' | float
'x' | float(1.5)
'1e3' | float
'inf' | float
'-Infinity' | float
'nan' | float
' 2.5 ' | float
'1_0.5' | float
'.5' | float
'5.' | float
'.' | float
i | float
none | float
2.5 | round
3.5 | round
2.675 | round(2)
-2.5 | round
42.55 | round(1, 'floor')
42.51 | round(1, 'ceil')
42 | round
42 | round(1)
1234 | round(-2)
1250 | round(-2)
1350 | round(-2)
1234.5 | round(-2)
2.5 | round | int
2.5 | round(0, 'x')
-3 | abs
-3.5 | abs
'a' | abs
t | safe
'<a href="x">&</a>' | e
'<a>' | escape
lines | indent
lines | indent(2)
lines | indent(2, true)
'a\n\nb' | indent(2)
'a\n\nb' | indent(2, blank=true)
'a\nb' | indent('> ')
'a\nb' | indent(width=1, first=true)
t | truncate(5)
t | truncate(8, true, '..', 0)
t | truncate(8, leeway=0)
xs | truncate(5)
'a' % missing
t | center(20) ~ '|'
'a b-c d_e' | wordcount
t | nope
t | tojson
u | tojson
u | tojson(ensure_ascii=true)
q | tojson
'\x00\x1f\x7f\b\f\\/' | tojson
i | tojson
f | tojson
h | tojson
1.0 | tojson
1e100 | tojson
nil | tojson
yes | tojson
mixed | tojson
d | tojson
d | tojson(indent=2)
nested | tojson(indent=4)
mixed | tojson(indent=1)
[] | tojson(indent=2)
{} | tojson(indent=2)
[[], {}] | tojson(indent=2)
d | tojson(indent=0)
d | tojson(separators=(',', ':'))
d | tojson(sort_keys=true)
d | tojson(indent='--')
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
(1, 2) | tojson
missing | tojson
range(3) | tojson
d.items() | tojson
'inf' | float | tojson
'%s-%s' | format(1, 'b')
'%(x)s' | format(x=1)
d | attr('b')
t is string
i is string
i is number
yes is number
f is float
i is float
i is integer
yes is integer
yes is boolean
i is boolean
yes is true
1 is true
no is false
nil is none
e is none
missing is defined
t is defined
missing is undefined
missing.x is defined
d.x is defined
d.b is defined
d is mapping
xs is mapping
xs is sequence
t is sequence
d is sequence
i is sequence
missing is sequence
xs is iterable
t is iterable
d is iterable
i is iterable
none is iterable
3 is odd
4 is odd
4 is even
-3 is odd
9 is divisibleby 3
9 is divisibleby(2)
1 is eq 1
1 is equalto(1.0)
1 is ne 2
1 is lt 2
3 is gt 2
3 is ge 3
3 is le 2
1 is in [1, 2]
'a' is in 'abc'
t is upper
'ABC' is upper
'abc' is lower
none is sameas none
1 is sameas true
false is sameas false
'upper' is filter
'nope' is filter
'odd' is test
range is callable
t is callable
3 is not odd
not 3 is odd
t is not string
t is nope
t is string and i is number
i is odd or false
xs is iterable and xs is not string
2 * 3 is odd
t is string is defined
i is divisibleby(7) and true
namespace(a=1).a
namespace(a=1).b
namespace({'x': 2}).x
namespace(_a=1)
raise_exception('boom')
strftime_now('%d %b %Y')
strftime_now('%Y-%m-%d %H:%M:%S')
strftime_now('%A %B %-d %j %y %I %p %%')
strftime_now('%a %b %e %U %W %V %G %u %w %f %Z|%z|')
strftime_now('%D %T %F %R %c %x %X')
strftime_now('plain')
t.__class__
t.__class__.__mro__
xs.__len__()
d._x
'<a>' | e | e
'<a>' | escape | escape
'<a>' | forceescape | forceescape
'<a>' | e | forceescape
'<a>' | safe | e
'<a>' | safe
i | safe
('<a>' | e) + '<b>'
'<b>' + ('<a>' | e)
('<a>' | e) ~ '<b>'
('<a>' | e).upper() | e
'<a>' | e | upper | e
'<a>' | e | title | e
'<a>' | e | trim | e
('<a>' | e) is escaped
'<a>' is escaped
('<a>' | safe) == '<a>'
none | e
[1, '<'] | e
users | groupby('age')
users | groupby('age') | map('first') | list
users | groupby('name') | map(attribute='grouper') | join(',')
users | groupby('age') | map(attribute='list') | map('length') | list
users | groupby('ok', default=false) | list
users | groupby('ok')
[{'c': 'a', 'n': 1}, {'c': 'B', 'n': 2}, {'c': 'A', 'n': 3}] | groupby('c')
[{'c': 'a', 'n': 1}, {'c': 'B', 'n': 2}, {'c': 'A', 'n': 3}] | groupby('c', case_sensitive=true)
[[1, 2], [1, 3], [0, 4]] | groupby(0)
[] | groupby('x')
i | groupby('x')
[{'a': {'b': 2}}, {'a': {'b': 1}}] | groupby('a.b')
t | urlencode
'a/b c&d=e+f?%~é' | urlencode
i | urlencode
none | urlencode
{'a b': 'c/d', 'e': 1, 'ü': none} | urlencode
[('a', 1), ('b', 'x y')] | urlencode
[1] | urlencode
missing | urlencode
{'class': 'a b', 'missing': none, 'id': 'x"<y>', 'n': 1} | xmlattr
{'class': 'a', 'x': missing} | xmlattr(false)
{'a b': 1} | xmlattr
{'a>': 1} | xmlattr
{'a': '<' | safe} | xmlattr
{} | xmlattr
xs | xmlattr
1 | filesizeformat
0 | filesizeformat
999 | filesizeformat
1000 | filesizeformat
1024 | filesizeformat
1024 | filesizeformat(true)
1500000 | filesizeformat
1500000 | filesizeformat(binary=true)
123456789012 | filesizeformat
1e30 | filesizeformat
'1234.5' | filesizeformat
-1 | filesizeformat
12.7 | filesizeformat
'x' | filesizeformat
none | filesizeformat
'ÀßİΣς ﬁ'.casefold()
'Hello'.casefold()
'\u13a0\uab70'.casefold() == '\u13a0\u13a0'
u.encode()
u.encode('utf-8')
u.encode('UTF8') | length
t.encode('ascii')
u.encode('ascii')
'é'.encode('latin-1')
t.encode('nope')
'a\'b"\n\t\\\x00\x7f'.encode()
"it's".encode()
t.encode()[0]
t.encode()[1:4]
t.encode()[::-1].decode()
t.encode() | list | sum
u.encode('utf-8').decode('utf-8') == u
u.encode()[:3].decode()
t.encode() == t.encode()
t.encode() == t
104 in t.encode()
t.encode() is sequence
t.encode() is string
t.encode() | tojson
t.encode().count(108)
xs[1,2]
t[0, 1]
{(1, 2): 'pair'}[1, 2]
{(1,): 'one'}[1,]
range(7)[::2]
range(10)[::2][::2]
range(7)[5:1:-2]
range(7)[9:]
xs | pprint
t | pprint
none | pprint
d | pprint
nested | pprint
messages | pprint
users | pprint
mixed | pprint
[] | pprint
{'b': [1, 2, {'z': 1, 'a': 2}], 'a': ('x',)} | pprint
(('abc ' * 12), ('def' * 12), 1) | pprint
('word ' * 40) | pprint
('x' * 100) | pprint
('line one is here\n' * 8) | pprint
{'key': 'word ' * 30, 'other': ['word ' * 20, 'short']} | pprint
[['abcdefghij' * 3, 'abcdefghij' * 3, 'abcdefghij' * 3], (1, 2, 3)] | pprint
(['abcdefghij' * 8],) | pprint
(('abcdefghij' * 9),) | pprint
{'a': {'b': {'c': ['item ' ~ i, 'another item', 'yet another item', 'the last item']}}} | pprint
range(30) | list | pprint
range(50) | pprint
{1: 'x' * 40, 2: 'y' * 40} | pprint
'é' * 79 | pprint
('é ' * 60) | pprint
''|length == 0
- 3 | abs
-3.7 | int | string ~ 'x'
xs | map('float') | sum | round(1)
(xs | sort)[0]
t.split(' ')[1][0:3].upper()
t.split()|last|lower
messages[0]['content'] + '\n' + messages[1].content
messages[-1].tool_calls[0].name
messages[1:] | length
messages[0].role == 'system' and messages | length > 2
(messages[0]['role'] == 'user') != (0 % 2 == 0)
messages | map(attribute='content') | join('')
{'a': 1}['a']
{'a': {'b': 2}}.a.b
[1, 2, 3][1]
'abc' 'def'[0]
*xs
xs,
1, 2
t if t
[x for x in xs]
lambda: 1
1 +
(1
1)
'unclosed
{{ 1 }}
"a" b
1.2.3
.5
a.b.
foo bar
1 if
!x
$
i is
i |
d.
[1, 2
{'a' 1}
{'a': }
"""

TEMPLATES = [
    "plain text\n", "line\n\n", "", "\n", "a\r\nb\rc\n",
    "{% if yes %}\nA\n{% endif %}\nB\n", "  {% if yes %}  \n  A\n  {% endif %}\nB",
    "x {%- if yes -%}  y  {%- endif -%} z", "x {%+ if yes +%}\n y {%+ endif %} z",
    "  {%+ if yes %}a{% endif %}", "a\n   {%- if yes %}\nb\n   {%- endif %}\nc",
    "a {# comment #} b", "a\n  {# comment #}\nb", "a {#- comment -#} b", "{# multi\nline #}x",
    "a {#+ c +#}\nb", "{#}", "{# {{ x }} {% if %} #}ok",
    "{{ 1 }}\n{{ 2 }}\n", "  {{ 1 }}  \n  {{- 2 -}}  \n 3", "{{- 1 }} {{ 2 -}} 3",
    "{%raw%}{{ x }}{% if %}{%endraw%}", "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "  {% raw %}\n  {{ x }}\n  {% endraw %}\n  y", "{% raw %}a", "{% raw +%}x{% endraw %}",
    "{% for x in xs %}{{ x }},{% endfor %}", "{% for x in xs %}\n{{ x }}\n{% endfor %}\n",
    "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in missing %}a{% else %}n{% endfor %}",
    "{% for x in xs if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}",
    "{% for x in xs if x > 9 %}a{% else %}none{% endfor %}",
    "{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in xs %}[{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}]{% endfor %}",
    "{% for x in xs %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in xs %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for a, b in xs %}x{% endfor %}",
    "{% for c in 'añ🙂' %}{{ c }}.{% endfor %}", "{% for x in i %}{% endfor %}",
    "{% for x in none %}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% for y in xs %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}!",
    "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}!",
    "{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}|{% endfor %}",
    "{% break %}", "{% for x in xs %}{% set y = x %}{% endfor %}{{ y }}",
    "{% set y = 0 %}{% for x in xs %}{% set y = y + x %}{{ y }} {% endfor %}{{ y }}",
    "{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
    "{% set ns = namespace(found=false) %}{% for x in xs if not ns.found %}{{ x }}{% set ns.found = true %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set ns.x = 1 %}", "{% set d.x = 1 %}", "{% set ns = namespace(a=1) %}{% set ns._x = 1 %}",
    "{% set ns = namespace(a=1, b='x') %}{{ ns }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = b = 1 %}", "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]",
    "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'z') | upper %}abc{% endset %}{{ x }}",
    "{% set x %}\n  y\n{% endset %}[{{ x }}]", "{% set true = 1 %}", "{% set 1 = 2 %}", "{% set x = %}",
    "{% if yes %}{% set v = 1 %}{% endif %}{{ v }}", "{% if no %}{% set v = 1 %}{% endif %}[{{ v }}]",
    "{% if no %}a{% elif yes %}b{% else %}c{% endif %}", "{% if no %}a{% elif no %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% elif i %}c{% elif yes %}d{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}", "{% if xs and not none %}a{% endif %}",
    "{% if xs | select('gt', 5) %}generators are true{% endif %}",
    "{% set g = xs | map('string') %}{{ g | join }}{{ g | join }}|{{ g | first }}",
    "{% set g = xs | map('string') %}{{ g | first }}{{ g | join }}", "{{ (xs | map('string')) | length }}",
    "{{ (xs | select) | last }}", "{{ (xs | reverse)[0] }}", "{{ xs | reverse | first }}",
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(1, c='y') }} {{ f(b=5, a=4) }} {{ f() }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}", "{% macro f(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ f(1, a=2) }}",
    "{% macro f(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, b=2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*[1, 2]) }}", "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1], **{'b': 2}) }}",
    "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{% macro f() %}{{ kwargs | length }}{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call f() %}{{ varargs }}{% endcall %}",
    "{% macro f(caller) %}{{ caller }}{% endmacro %}{{ f(1) }}", "{% macro f(caller=7) %}{{ caller }}{% endmacro %}{{ f() }}",
    "{% macro f(caller=7) %}{{ caller() }}{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f(a, caller=7) %}{{ caller() }}{% endmacro %}{% call f(1, 2) %}y{% endcall %}",
    "{% macro f() %}{{ caller }}{% endmacro %}[{{ f(caller=3) }}]",
    "{% macro f() %}{% macro g() %}{{ kwargs }}{% endmacro %}{{ g(a=1) }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f() %}{% if no %}{{ varargs }}{% endif %}ok{% endmacro %}{{ f(1, 2, 3) }}",
    "{% macro f() %}{{ d.kwargs }}ok{% endmacro %}{{ f(a=1) }}",
    "{% macro f(caller) %}x{% endmacro %}{{ f(1) }}", "{% macro f(caller) %}x{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f() %}{{ kwargs }}{% endmacro %}{% call f(x=1) %}{% endcall %}", "{% macro f() %}{{ kwargs }}{% endmacro %}{% call f(x=1, **{'y': 2}) %}{% endcall %}",
    "{% macro f() %}{{ kwargs }}{% endmacro %}{% call f(caller=1) %}{% endcall %}", "{% macro f() %}{{ caller.name }}{% endmacro %}{% call f() %}{% endcall %}",
    "{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(a=1, a=2) }}", "{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(a=1, **{'a': 2}) }}",
    "{% macro f(kwargs) %}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(kwargs=2) }}", "{% macro f(varargs) %}{{ varargs }}{% endmacro %}{{ f(1, 2) }}",
    "{{ namespace(a=1, **{'a': 2}).a }}", "{{ dict(a=1, **{'b': 2}) }}", "{{ dict(a=1, a=2) }}",
    "{% macro f(a) %}\n  {{ a }}\n{% endmacro %}\n[{{ f(1) }}]", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ f() }}", "{% macro f() %}{% set t = 1 %}{% endmacro %}{{ f() }}{{ t }}",
    "{% macro f(x) %}{{ x | upper }}{% endmacro %}{{ xs | map('string') | join ~ f('a') ~ f('b') }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}", "{% macro f(a=1, b) %}{% endmacro %}",
    "{% macro m(x) %}<{{ x }}>{{ caller() }}{% endmacro %}{% call m(1) %}body{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}+{{ b }}{% endcall %}",
    "{% filter upper %}abc {{ t }}{% endfilter %}", "{% filter upper | replace('A', 'z') %}abc{% endfilter %}",
    "{% with %}{% set x = 1 %}{{ x }}{% endwith %}[{{ x }}]", "{% with a=1, b=2 %}{{ a }}{{ b }}{% endwith %}[{{ a }}]",
    "{% with i=1, j=i %}{{ i }}{{ j }}{% endwith %}", "{% print 1 + 2 %}",
    "{% generation %}abc{{ i }}{% endgeneration %}!", "{% generation %}{% set x = 1 %}{% endgeneration %}[{{ x }}]",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ loop.index }}{% endgeneration %}{% endif %}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is number %}{{ x }}{% else %}({{ loop(x) }}){% endif %}{% endfor %}",
    "{% for x in [[1], [[2]]] recursive %}{{ loop.depth }}{{ loop.depth0 }}{% if x is iterable %}<{{ loop(x) }}>{% endif %}{% endfor %}",
    "{% for x in xs %}{{ loop(x) }}{% endfor %}", "{% if yes: %}a{% endif %}",
    "{% for %}", "{% for x %}", "{% for x in xs %}", "{% endfor %}", "{% if %}a{% endif %}", "{% if yes %}",
    "{% if yes %}{% endfor %}", "{% unknown %}", "{% %}", "{{ }}", "{{", "{%", "{{ x", "{% if x",
    "{{ 'a' }", "{{ {'a': {'b': 1}} }}", "{{ {'a': 1}}}", "{{ '}}' }}", "{{ \"%}\" }}", "{% set x = '%}' %}{{ x }}",
    "{% set x = {'a': [1, {'b': 2}]} %}{{ x.a[1].b }}", "{{ xs[0] }}{{xs[1]}}{{-xs[2]-}} !",
    "{{ loop }}", "{% set loop = 1 %}{{ loop }}", "{% for x in xs %}{% endfor %}{{ loop is defined }}",
    "{% for x in xs %}{{ loop.nope is defined }}{% endfor %}", "{{ range }}{{ 1 }}" if False else "{{ range is defined }}",
    "{% set messages = messages[1:] %}{{ messages | length }}",
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ system }}{{ messages | length }}",
    "{%- for m in messages %}{{ m.role }}{% if not loop.last %},{% endif %}{% endfor -%}  \n",
    "{%- for message in messages -%}\n  {{- message.role + ': ' -}}\n  {{ message.content }}\n{% endfor %}",
    "{% set x = x | default('d') %}{{ x }}", "{% set xs = xs + [4] %}{{ xs }}", "{% set (a, b) = (1, 2) %}{{ a ~ b }}",
    "{% for k, v in nested.items() %}{{ k }}{% endfor %}", "{{ nested.items }}" if False else "{{ nested.items is callable }}",
    "{{ xs[9] is defined }}{{ xs[9] }}", "{% set _ = xs.append(1) %}{{ xs }}", "{%- set a -%}  b  {%- endset -%}  [{{ a }}]",
    "{{ 'x' if missing is defined else 'y' }}", "{{ (missing or {}).x }}", "{{ (missing | default({})).get('a', 'b') }}",
    "{% if 'a' in d and d['a'] is number %}{{ d['a'] + 1 }}{% endif %}", "{{ [1, 2, 3,] }}{{ (1,) }}{{ {'a': 1,} }}",
    "{{ f(1) }}", "{{ t('x') }}", "{{ t | join(',') | length }}", "{{ d.items() | map('first') | list }}",
    "{% for x in xs -%}\n  {{ x }}\n{%- endfor %}", "a\n{% if yes %}\n\nb\n\n{% endif %}\n\nc\n\n",
    "{{ 'a' -}}\n\n b {{- 'c' }}", "\t{% if yes %}x{% endif %}\t\n{{ 1 }}", "\u00a0{% if yes %}x{% endif %}",
    "{{ '\\n' }}x{{ \"\\t\" }}", "{{ namespace }}" if False else "{{ namespace is callable }}",
    "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}",
    "{{ 9223372036854775807 | string }}", "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% for x in [2] %}{{ f() }}{{ x }}{% endfor %}",
    "{% for x in xs %}{% set ns = namespace(v=x) %}{{ ns.v }}{% endfor %}",
    "{% for item in [{'a': 1}, {'a': 2}] %}{{ item.a }}{{ ',' if not loop.last }}{% endfor %}",
    "{{ dict(a=1).items() | list }}{{ dict(**{'b': 2}) }}", "{{ [*xs] }}", "{{ '%s%s' | format(*['a', 'b']) }}",
    "{% set x = 1, 2 %}{{ x }}", "{{ (1, 2)|join }}", "{{ not (1 == 1) }}{{ not 1 == 2 }}",
    "{{ 1 if true }}{{ 1 if false }}{{ (1 if false) is defined }}", "{{ none is none is none }}",
    "{% macro a() %}{% macro b() %}inner{% endmacro %}{{ b() }}{% endmacro %}{{ a() }}",
    "{% set f = t.upper %}{{ f() }}", "{% for x in d.values() | sort %}{{ x }}{% endfor %}",
    "{% set s = 'abc' %}{{ s[1:] ~ s[:1] }}{{ s[-1:] }}{{ s[3:] }}|", "{{ 1 < 2 and 2 < 3 or missing.x }}",
]


def environment(template):
    return chat_template_utils._cached_compile_jinja_template(template)


def render(template, context):
    """The text, or None; the context is a copy because a filter like indent can change a list."""
    try:
        return environment(template).render(**copy.deepcopy(context))
    except Exception:  # whatever jinja2 or Python refuses
        return None


def chat_templates():
    folder = pathlib.Path(__file__).resolve().parent / "template_chats"
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}


def tool(name, description, properties, required):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required}}}


WEATHER = tool("get_weather", "Current weather at a place.",
               {"city": {"type": "string", "description": "City, e.g. \"Zürich\""},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, ["city"])
ADD = tool("add", "Adds numbers", {"xs": {"type": "array", "items": {"type": "number"}},
                                   "exact": {"type": "boolean"}}, [])


def turn(*texts, system=None):
    roles = ["user", "assistant"]
    messages = [{"role": "system", "content": system}] if system is not None else []
    return messages + [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def conversations():
    call = {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "id": "call00001",
         "function": {"name": "get_weather", "arguments": {"city": "Zürich", "unit": "celsius"}}}]}
    answer = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001",
              "content": "{\"temp\": 21.5}"}
    plain = [
        turn("Hi"), turn("Hi", system="Be brief."), turn("Hi", "Hello!", "And now?"),
        turn("Hi", "Hello!", "And now?", "Bye", "Wait", system="You are a poet."),
        turn(""), turn("", system=""), turn("a", ""), turn("  spaced  \n", system="  s \n"),
        turn("Grüße aus Zürich! 你好 🙂"), turn("über", "ñandú", "日本語", system="Ünïcode 🚀"),
        turn("it's \"quoted\" \\ and\ttabbed"), turn("line 1\nline 2\n\nline 4", "ok\n"),
        turn("```python\nprint('{{ x }}')\n```"), turn("<|im_end|> [INST] </s>"),
        turn("{% if x %}", "{# c #}", "{{ y }}"), turn("a", "b", "c", "d"),
        turn("x" * 300), turn("1", "2", "3", "4", "5", "6", "7", system="Count."),
        turn("Think", "<think>\nhm\n</think>\n\nDone", "More"),
        turn("Think", "<think>a</think>b", system="/no_think"),
        turn("Hi", system="Custom.\n/think"),
        [{"role": "assistant", "content": "I begin."}, {"role": "user", "content": "ok"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "system", "content": "only"}], [],
        [{"role": "user", "content": [{"type": "text", "text": "part 1"},
                                      {"type": "text", "text": "part 2"}]}],
        [{"role": "unknown", "content": "x"}], [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 42}],
    ]
    cases = [({"messages": m, "add_generation_prompt": i % 2 == 0}, "plain")
             for i, m in enumerate(plain)]
    cases += [({"messages": m, "add_generation_prompt": i % 2 == 1}, "plain")
              for i, m in enumerate(plain[:5])]
    question = turn("Weather in Zürich?", system="Use tools.")
    for messages, tools in ((question, [WEATHER]), (question[1:], [WEATHER, ADD]),
                            (question + [call, answer], [WEATHER]),
                            (question[1:] + [call, answer] + turn("x")[:0] +
                             [{"role": "assistant", "content": "21.5 °C"},
                              {"role": "user", "content": "Thanks"}], [WEATHER]),
                            (question[1:] + [call, answer, call, answer], [ADD, WEATHER]),
                            (turn("No tools", system="S"), [])):
        for extra in ({}, {"tools_in_user_message": False, "enable_thinking": False,
                           "date_string": "4 July 2025", "builtin_tools": ["brave_search"]}):
            cases.append(({"messages": messages, "tools": tools, "add_generation_prompt": True,
                           **extra}, "tools"))
    for context, _ in cases:
        context.update(bos_token="<s>", eos_token="</s>")
    return cases


def write(path, data):
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size, "bytes")


def main():
    golden = pathlib.Path(sys.argv[1])
    sources = ["{{ %s }}" % line for line in EXPRESSIONS.strip("\n").split("\n")] + TEMPLATES
    sources = list(dict.fromkeys(sources))
    expected = [[source, render(source, CONTEXT)] for source in sources]
    write(golden / "template_expressions.json",
          {"now": NOW, "context": CONTEXT, "cases": expected})
    templates, chats = chat_templates(), conversations()
    rendered = []
    for name, source in templates.items():
        for i, (context, _) in enumerate(chats):
            rendered.append([name, i, render(source, context)])
    write(golden / "template_chats.json",
          {"now": NOW, "templates": templates, "contexts": [c for c, _ in chats],
           "cases": rendered})
    refused = sum(text is None for _, text in expected)
    print(len(expected), "expressions,", refused, "refused;", len(rendered), "chats,",
          sum(text is None for *_, text in rendered), "refused")


if __name__ == "__main__":
    main()
