//! Quantities against a table made with Go's package.

use super::*;
use proptest::prelude::*;

const TABLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/units/quantity.tsv"));

#[test]
fn every_row_of_the_go_table_agrees() {
    let mut rows = 0;
    for line in TABLE.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let input = columns[0].trim_matches('"');
        let parsed = input.parse::<Quantity>();
        rows += 1;
        if columns[1] == "error" {
            assert_eq!(parsed.unwrap_err().to_string(), columns[2], "{input}");
            continue;
        }
        let quantity = parsed.unwrap_or_else(|e| panic!("{input}: {e}"));
        assert_eq!(quantity.to_string(), columns[1], "{input}");
        // Go wraps around where a number does not fit (we saturate), and also for negative numbers
        // whose nano-units do not fit although the result would.
        let fits = |unit: i128| {
            i64::try_from(quantity.nanos / unit).is_ok()
                && (quantity.nanos > 0
                    || (quantity.nanos % unit == 0 && i64::try_from(quantity.nanos).is_ok()))
        };
        if fits(NANO) {
            assert_eq!(quantity.value().to_string(), columns[2], "{input}");
        }
        if fits(1_000_000) {
            assert_eq!(quantity.milli_value().to_string(), columns[3], "{input}");
        }
        let format = match quantity.format {
            Format::DecimalExponent => "DecimalExponent",
            Format::BinarySi => "BinarySI",
            Format::DecimalSi => "DecimalSI",
        };
        assert_eq!(format, columns[4], "{input}");
    }
    assert!(rows > 350, "only {rows} rows");
}

#[test]
fn sums_take_the_format_of_the_first_non_zero_part() {
    let sum = Quantity::ZERO.saturating_add("1Gi".parse().unwrap());
    assert_eq!(sum.to_string(), "1Gi");
    let difference = sum.saturating_sub("24Mi".parse().unwrap());
    assert_eq!(difference.to_string(), "1000Mi");
}

#[test]
fn json_takes_strings_and_numbers() {
    assert_eq!(serde_json::from_str::<Quantity>("\" 1Ki \"").unwrap().value(), 1024);
    assert_eq!(serde_json::from_str::<Quantity>("1024").unwrap().to_string(), "1024");
    assert_eq!(serde_json::from_str::<Quantity>("0.5").unwrap().milli_value(), 500);
    assert_eq!(serde_json::to_string(&Quantity::from_bytes(2048)).unwrap(), "\"2Ki\"");
}

proptest! {
    #[test]
    fn the_canonical_form_keeps_the_value(milli: i64, binary: bool) {
        let format = if binary { Format::BinarySi } else { Format::DecimalSi };
        let quantity = Quantity::from_milli(milli, format);
        prop_assert_eq!(quantity.to_string().parse::<Quantity>().unwrap(), quantity);
    }

    #[test]
    fn order_follows_the_value(a: i64, b: i64) {
        let (left, right) = (Quantity::new(a, Format::BinarySi), Quantity::new(b, Format::DecimalSi));
        prop_assert_eq!(left.cmp(&right), a.cmp(&b));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[-+0-9.eEinumkKMGTP ]{0,40}") {
        let _ = text.parse::<Quantity>().map(|q| (q.to_string(), q.value(), q.milli_value()));
    }
}
