use proptest::prelude::*;

use super::*;

fn value(expression: &str) -> String {
    match evaluate(expression) {
        Ok(value) => value,
        Err(message) => panic!("{expression}: {message}"),
    }
}

#[test]
fn expressions_evaluate_as_in_python() {
    let cases = [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("  2*\t( 3 ) \n", "6"),
        ("7 / 2", "3.5"),
        ("6 / 3", "2.0"),
        ("1 / 3", "0.3333333333333333"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 // -2", "-4"),
        ("-7 // -2", "3"),
        ("7 % 3", "1"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("7.5 // 2", "3.0"),
        ("-7.5 // 2", "-4.0"),
        ("-7.5 % 2", "0.5"),
        ("7.5 % -2", "-0.5"),
        ("6.0 % -2", "-0.0"),
        ("1e16 % 3", "1.0"),
        ("2 ** 10", "1024"),
        ("-2 ** 2", "-4"),
        ("(-2) ** 2", "4"),
        ("2 ** -1", "0.5"),
        ("2 ** 3 ** 2", "512"),
        ("2 ** -3 ** 2", "0.001953125"),
        ("4 ** 0.5", "2.0"),
        ("(-8) ** 3.0", "-512.0"),
        ("0 ** 0", "1"),
        ("(-1) ** 10 ** 30", "1"),
        ("(-1) ** (10 ** 30 + 1)", "-1"),
        ("--3 - -+-3", "0"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("1e3", "1000.0"),
        (".5 + 5.", "5.5"),
        ("1__0 + 1e+2 + 0xe+1", "125.0"),
        (
            "2 ** 126 - 1 + 2 ** 126",
            "170141183460469231731687303715884105727",
        ),
        ("1_000_000 + 0xff + 0b101 + 0o17", "1000275"),
        ("10 ** 20 + 1", "100000000000000000001"),
        ("10 ** 20 / 3", "3.333333333333333e19"),
        ("2 ** 64 * 1.0", "1.8446744073709552e19"),
        ("sqrt(2)", "1.4142135623730951"),
        ("math.sqrt(16) + math.pi", "7.141592653589793"),
        ("abs(-3) + abs(2.5)", "5.5"),
        ("abs(-0.0)", "0.0"),
        ("round(2.5) + round(3.5) + round(-2.5)", "4"),
        ("round(2.675, 2)", "2.67"),
        ("round(1250, -2) + round(1350, -2)", "2600"),
        ("round(-1250, -2)", "-1200"),
        ("round(1234.5, -2)", "1200.0"),
        ("round(7, 3)", "7"),
        ("round(1e300, -400)", "0.0"),
        ("floor(-2.5) + ceil(-2.5)", "-5"),
        ("floor(1e20)", "100000000000000000000"),
        ("min(3, 1.5, 2) + max(1, 10 ** 30 // 10 ** 29)", "11.5"),
        ("max(10 ** 30 + 1, 10 ** 30) - 10 ** 30", "1"),
        ("min(-10 ** 30, 1e308) + 10 ** 30", "0"),
        ("max(2.0 ** 53, 2 ** 53 + 1)", "9007199254740993"),
        ("min(2.0 ** 53, 2 ** 53 + 1)", "9007199254740992.0"),
        ("min(2 ** 53 + 1, 2.0 ** 53)", "9007199254740992.0"),
        (
            "max(2 ** 126 - 1 + 2 ** 126, 2.0 ** 127)",
            "1.7014118346046923e38",
        ),
        ("max(2 ** 53, 2.0 ** 53)", "9007199254740992"),
        ("max(1, 1.5, 1.0)", "1.5"),
        ("min(-1, -1.5, -1.0)", "-1.5"),
        ("min(0.0, -0.0)", "0.0"),
        ("pow(2, 100)", "1267650600228229401496703205376"),
        ("sin(pi / 6)", "0.49999999999999994"),
        ("cos(0) + tan(0)", "1.0"),
        ("asin(1) - acos(0)", "0.0"),
        ("atan2(1, -1) - atan(1)", "1.5707963267948966"),
        ("tau / 2 - pi", "0.0"),
        ("exp(1) - e", "0.0"),
        ("log(e)", "1.0"),
        ("log(100, 10)", "2.0"),
        ("log2(2 ** 70) + log10(1000)", "73.0"),
        ("log10(10 ** 38)", "38.0"),
        ("factorial(20)", "2432902008176640000"),
        ("factorial(0)", "1"),
        ("gcd(12, -18) + gcd() + gcd(0, 5)", "11"),
    ];
    for (expression, expected) in cases {
        assert_eq!(value(expression), expected, "{expression}");
    }
}

#[test]
fn error_messages() {
    let cases = [
        "",
        "   ",
        "1 +",
        "1 + * 2",
        "(1 + 2",
        "1 + 2)",
        "1 2",
        "2(3)",
        "2x",
        "1,000 + 1",
        "0x",
        "1.2.3",
        "2 ^ 3",
        "x = 3",
        "1 < 2",
        "3 × 4",
        "x + 1",
        "__import__(1)",
        "pi(2)",
        "sqrt",
        "sqrt()",
        "sqrt(1, 2)",
        "round(1, 2, 3)",
        "round(1, 2.0)",
        "min()",
        "atan2(1)",
        "1 / 0",
        "1 // 0.0",
        "5 % 0",
        "1 + 2.0 / (1 - 1)",
        "0 ** -1",
        "0.0 ** -1",
        "(-8) ** (1/3)",
        "sqrt(-1)",
        "log(0)",
        "log(-1.5)",
        "log(2, 1)",
        "asin(2)",
        "factorial(-1)",
        "factorial(2.0)",
        "gcd(1.5, 2)",
        "1e400",
        "1e308 * 10",
        "exp(1000)",
        "10.0 ** 400",
        "2 ** 10 ** 10",
        "2 ** 100001",
        "9 ** 9 ** 9 ** 9",
        "factorial(10 ** 9)",
        "10 ** 30 * 10 ** 30",
        "2 ** 127",
        "-2 ** 126 - 2 ** 126",
        "170141183460469231731687303715884105728",
        "floor(1e39)",
        "round(9 * 10 ** 37 + 8 * 10 ** 37, -38)",
    ];
    let report: String = cases
        .iter()
        .map(|expression| match evaluate(expression) {
            Ok(value) => panic!("{expression} is {value}"),
            Err(message) => format!("{expression}\n    {message}\n"),
        })
        .collect();
    insta::assert_snapshot!(report);
}

#[test]
fn length_and_nesting_are_bounded() {
    let nested = |depth| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
    let cases = [
        (nested(101), "nested more than 100 times"),
        ("2**".repeat(3_000) + "1", "nested more than 100 times"),
        ("1+".repeat(5_000) + "1", "longer than 10000 characters"),
    ];
    for (expression, message) in cases {
        let error = evaluate(&expression).expect_err(message);
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(value(&nested(100)), "1");
    assert_eq!(value(&("-".repeat(9_999) + "1")), "-1");
}

/// Python's `//` and `%`.
fn floored(a: i128, b: i128) -> (i128, i128) {
    let (quotient, rest) = (a.div_euclid(b), a.rem_euclid(b));
    if rest != 0 && b < 0 {
        (quotient - 1, rest + b)
    } else {
        (quotient, rest)
    }
}

proptest! {
    #[test]
    fn integers_are_exact(a in any::<i64>(), b in any::<i64>(), c in any::<i32>()) {
        let (x, y, z) = (i128::from(a), i128::from(b), i128::from(c));
        prop_assert_eq!(value(&format!("{a} + {b} - {c}")), (x + y - z).to_string());
        prop_assert_eq!(value(&format!("{a} * {b} + {c}")), (x * y + z).to_string());
        prop_assert_eq!(value(&format!("({a} - {b}) * {c}")), ((x - y) * z).to_string());
        prop_assert_eq!(value(&format!("max({a}, {b}) - min({a}, {b})")), (x - y).abs().to_string());
        if b != 0 {
            let (quotient, rest) = floored(x, y);
            prop_assert_eq!(value(&format!("({a}) // ({b})")), quotient.to_string());
            prop_assert_eq!(value(&format!("({a}) % ({b})")), rest.to_string());
        }
    }

    #[test]
    fn powers_of_integers_are_exact(base in -40_i128..40, exponent in 0_u32..24) {
        let expected = base.pow(exponent).to_string();
        prop_assert_eq!(value(&format!("({base}) ** {exponent}")), expected);
    }

    #[test]
    fn floats_are_ieee_754(a in -1e9..1e9_f64, b in -1e9..1e9_f64) {
        prop_assert_eq!(value(&format!("({a:?}) + ({b:?})")), format!("{:?}", a + b));
        prop_assert_eq!(value(&format!("({a:?}) * ({b:?})")), format!("{:?}", a * b));
        prop_assert_eq!(value(&format!("({a:?}) / ({b:?})")), format!("{:?}", a / b));
        let again = value(&format!("({a:?}) // ({b:?}) * ({b:?}) + ({a:?}) % ({b:?})"));
        let again: f64 = again.parse().expect("a number");
        prop_assert!((again - a).abs() <= 1e-6, "{again} {a}");
    }

    #[test]
    fn integer_quotients_are_the_nearest_float(a in -(1_i64 << 52)..1 << 52, b in 1_i64..1 << 52) {
        let expected = format!("{:?}", a as f64 / b as f64);
        prop_assert_eq!(value(&format!("{a} / {b}")), expected);
    }

    #[test]
    fn no_input_panics(text in "[0-9a-z+*/%().,^ -]{0,40}") {
        let _ = evaluate(&text);
    }
}
