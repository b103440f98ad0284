use proptest::prelude::*;

use super::*;

fn pattern(text: &str) -> HostPattern {
    text.parse().expect("a pattern")
}

fn host(text: &str) -> HostName {
    text.parse().expect("a host name")
}

#[test]
fn a_pattern_matches_what_it_says_and_nothing_near_it() {
    for (text, name, port, expected) in [
        ("pypi.org", "pypi.org", 443, true),
        ("pypi.org", "pypi.org", 80, true),
        ("pypi.org", "pypi.org", 8080, false),
        ("PyPI.Org.", "pypi.org", 443, true),
        ("pypi.org", "PYPI.ORG.", 443, true),
        ("pypi.org", "files.pypi.org", 443, false),
        ("pypi.org", "evilpypi.org", 443, false),
        ("pypi.org", "pypi.org.evil.com", 443, false),
        ("*.debian.org", "deb.debian.org", 443, true),
        ("*.debian.org", "a.b.debian.org", 80, true),
        ("*.debian.org", "debian.org", 443, false),
        ("*.debian.org", "evildebian.org", 443, false),
        ("*.debian.org:8443", "deb.debian.org", 8443, true),
        ("git.example.org:9418", "git.example.org", 9418, true),
        ("git.example.org:9418", "git.example.org", 443, false),
        ("xn--bcher-kva.example", "XN--BCHER-KVA.example", 443, true),
        (
            "my_service.example.org",
            "my_service.example.org",
            443,
            true,
        ),
    ] {
        let matched = pattern(text).matches(&host(name), port);
        assert_eq!(matched, expected, "{text} and {name}:{port}");
    }
}

#[test]
fn a_pattern_is_written_in_one_way() {
    for (text, expected) in [
        ("PyPI.org.", "pypi.org"),
        ("*.Debian.org.:443", "*.debian.org:443"),
    ] {
        assert_eq!(pattern(text).to_string(), expected);
        let json = serde_json::to_value(pattern(text)).expect("serializes");
        assert_eq!(json, expected);
    }
}

#[test]
fn no_spelling_of_an_address_is_a_name() {
    for text in [
        "127.0.0.1",
        "127.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0X7F000001",
        "0x7f.0.0.1",
        "127.0.0.0x1",
        "0177.0.0.1",
        "0x",
        "example.0x7f",
        "999.999.999.999",
        "169.254.169.254",
        "::1",
        "[::1]",
        "::ffff:127.0.0.1",
        "fe80::1%eth0",
    ] {
        assert!(text.parse::<HostName>().is_err(), "{text}");
        for text in [text.to_owned(), format!("{text}:80"), format!("*.{text}")] {
            let error = text.parse::<HostPattern>().expect_err(&text);
            assert!(
                error.advice().contains("addresses can't be allowed"),
                "{error}"
            );
        }
    }
}

#[test]
fn what_is_no_host_is_refused_with_what_to_write_instead() {
    let texts = [
        "",
        ".",
        "*",
        "*.",
        "*:443",
        "*.com",
        "localhost",
        "localhost:8000",
        "a.*.org",
        "*debian.org",
        "https://pypi.org/simple",
        "pypi.org/simple",
        "user@pypi.org",
        "bücher.example",
        "a..org",
        ".org.example",
        "-a.org",
        "a b.org",
        "pypi.org:",
        "pypi.org:0",
        "pypi.org:65536",
        "pypi.org:https",
        "pypi.org\n",
        "py\0pi.org",
        "%70ypi.org",
        &format!("{}.org", "a".repeat(64)),
    ];
    let refused = texts.map(|text| match text.parse::<HostPattern>() {
        Ok(pattern) => panic!("`{text}` was taken for {pattern}"),
        Err(error) => error.to_string(),
    });
    insta::assert_snapshot!(refused.join("\n"));
}

proptest! {
    #[test]
    fn whatever_is_read_is_written_and_read_again(text in ".{0,40}") {
        if let Ok(pattern) = text.parse::<HostPattern>() {
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        if let Ok(name) = text.parse::<HostName>() {
            let again: Result<HostName, _> = name.as_str().parse();
            prop_assert_eq!(again, Ok(name));
        }
    }

    #[test]
    fn near_misses_are_read_alike(text in "[a-z0-9xX.*:\\[\\]-]{0,20}") {
        if let Ok(pattern) = text.parse::<HostPattern>() {
            let upper: HostPattern = text.to_ascii_uppercase().parse().expect("the same");
            prop_assert_eq!(&upper, &pattern);
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
    }

    #[test]
    fn no_name_is_an_address_to_the_standard_library(
        text in "[0-9a-fA-FxX.:\\[\\]]{1,20}",
    ) {
        if let Ok(name) = text.parse::<HostName>() {
            prop_assert!(name.as_str().parse::<std::net::IpAddr>().is_err());
        }
    }

    #[test]
    fn a_pattern_matches_its_own_name(labels in "[a-z]{1,8}(\\.[a-z]{1,8}){1,3}", port in 1..=u16::MAX) {
        let name = host(&labels);
        let own = pattern(&format!("{labels}:{port}"));
        prop_assert!(own.matches(&name, port));
        let sub_domains = pattern(&format!("*.{labels}"));
        prop_assert!(!sub_domains.matches_name(&name));
        let below = host(&format!("x.{labels}"));
        prop_assert!(sub_domains.matches_name(&below));
    }
}
