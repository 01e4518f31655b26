//! What the reader makes of texts, as Go's library does.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn value(text: &str) -> Value {
    read(text.as_bytes()).unwrap().value
}

fn fault(text: &str) -> String {
    read(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn scalars_are_those_of_yaml_1_1() {
    assert_eq!(
        value(
            "a: yes\nb: off\nc: y\nd: 0644\ne: ~\nf: '1'\ng: 10250.0\nh: 1.5\ni: text\nj:\n\
             k: 08\nl: 1e400\nm: 0b11\nnn: 1_0\no: 190:20:30\np: 2001-01-01\nq: !!str 5\n\
             r: !!float 1\ns: !!binary aGk=\nt: 0x\n"
        ),
        json!({"a": true, "b": false, "c": true, "d": 420, "e": null, "f": "1", "g": 10250,
               "h": 1.5, "i": "text", "j": null, "k": 8, "l": "1e400", "m": 3, "nn": 10,
               "o": "190:20:30", "p": "2001-01-01", "q": "5", "r": 1, "s": "hi", "t": "0x"})
    );
}

#[test]
fn blocks_flows_and_folded_texts_nest() {
    assert_eq!(
        value("a:\n- b\n-\n  - c\nd: [e, {f: g}, h: i]\nj: |\n  k\n   l\n\nm: >-\n  n\n  o\n"),
        json!({"a": ["b", ["c"]], "d": ["e", {"f": "g"}, {"h": "i"}], "j": "k\n l\n", "m": "n o"})
    );
    assert_eq!(value("a: \"b\\\n  c \\u00e9\"\nd: e\n  f\n"), json!({"a": "bc é", "d": "e f"}));
}

#[test]
fn only_the_first_document_counts() {
    assert_eq!(value("---\na: 1\n---\nb: 2\n"), json!({"a": 1}));
    assert_eq!(value("\u{feff}a: 1\n"), json!({"a": 1}));
    assert_eq!(value("# nothing\n"), Value::Null);
    assert_eq!(value(""), Value::Null);
}

#[test]
fn a_brace_begins_json() {
    assert_eq!(
        read_either(b" {\"a\": 01}").unwrap_err().to_string(),
        "invalid character '1' after object key:value pair"
    );
    assert_eq!(read_either(b"{\"a\": 1}").unwrap(), json!({"a": 1}));
    assert_eq!(read_either(b"a: 0644").unwrap(), json!({"a": 420}));
}

#[test]
fn the_line_of_a_value_is_found_by_its_path() {
    let text = b"a: 1\nb:\n- c: 2\n- d:\n    e: 3\n";
    assert_eq!(line_of(text, ["b", "1", "d", "e"]), Some(5));
    assert_eq!(line_of(text, ["b", "0", "x", "y"]), Some(3));
    assert_eq!(line_of(text, []), Some(1));
    assert_eq!(line_of(b"a: [", ["a"]), None);
}

#[test]
fn anchors_and_merge_keys_work() {
    assert_eq!(
        value("x: &x {a: 1}\nz:\n  <<: *x\n  b: 2\n"),
        json!({"x": {"a": 1}, "z": {"a": 1, "b": 2}})
    );
    assert_eq!(fault("a: &a [*a]\n"), "yaml: anchor 'a' value contains itself");
    assert_eq!(fault("a: *b\n"), "yaml: unknown anchor 'b' referenced");
    assert_eq!(fault("<<: 5\n"), "yaml: map merge requires map or sequence of maps as the value");
}

#[test]
fn duplicate_keys_are_told_and_the_last_wins() {
    let document = read(b"a: 1\nb: 2\na: 3\n").unwrap();
    assert_eq!(document.value, json!({"a": 3, "b": 2}));
    assert_eq!(
        document.objection.unwrap(),
        "yaml: unmarshal errors:\n  line 3: key \"a\" already set in map"
    );
}

#[test]
fn what_is_wrong_is_told_in_the_librarys_words() {
    for (text, told) in [
        ("a: 1\n  b: 2\n", "yaml: line 2: mapping values are not allowed in this context"),
        ("a: b: c\n", "yaml: mapping values are not allowed in this context"),
        ("\ta: b\n", "yaml: found character that cannot start any token"),
        ("a: [b\n", "yaml: line 1: did not find expected ',' or ']'"),
        ("a: @b\n", "yaml: found character that cannot start any token"),
        ("a: 1\nb\nc: 2\n", "yaml: line 3: could not find expected ':'"),
        ("a: 'b\n", "yaml: line 2: found unexpected end of stream"),
        ("%YAML 1.2\n---\na: b\n", "yaml: found incompatible YAML document"),
        ("a: \u{1}", "yaml: control characters are not allowed"),
        ("a: .inf\n", "json: unsupported value: +Inf"),
        ("[a]: b\n", "yaml: invalid map key: []interface {}{\"a\"}"),
        ("a: !!int x\n", "yaml: cannot decode !!str `x` as a !!int"),
        ("~: b\n", "unsupported map key of type: %!s(<nil>), key: <nil>, value: \"b\""),
    ] {
        assert_eq!(fault(text), told, "{text:?}");
    }
    assert_eq!(read(b"a: \xff").unwrap_err().to_string(), "yaml: invalid leading UTF-8 octet");
}

proptest! {
    #[test]
    fn nothing_panics(text in "[a-c:\\-?\\[\\]{},#&*!|>'\"%@` \\t\\n\\r0-9.~<é\\\\]{0,60}") {
        let _ = read(text.as_bytes());
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = read(&bytes);
    }
}
