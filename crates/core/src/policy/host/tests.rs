use proptest::prelude::*;

use super::*;
use crate::policy::Network;

fn pattern(text: &str) -> HostPattern {
    text.parse().expect("a pattern")
}

fn host(text: &str) -> HostName {
    text.parse().expect("a host name")
}

#[test]
fn patterns_match_exactly() {
    for (text, name, port, expected) in [
        ("example.com", "example.com", 443, true),
        ("example.com", "example.com", 80, true),
        ("example.com", "example.com", 8080, false),
        ("Example.Com.", "example.com", 443, true),
        ("example.com", "EXAMPLE.COM.", 443, true),
        ("example.com", "files.example.com", 443, false),
        ("a.example.com", "ba.example.com", 443, false),
        ("example.com", "example.com.example.org", 443, false),
        ("*.example.org", "deb.example.org", 443, true),
        ("*.example.org", "a.b.example.org", 80, true),
        ("*.example.org", "example.org", 443, false),
        ("*.a.example.org", "ba.example.org", 443, false),
        ("*.example.org:8443", "deb.example.org", 8443, true),
        ("git.example.org:9418", "git.example.org", 9418, true),
        ("git.example.org:9418", "git.example.org", 443, false),
        (
            "xn--bcher-kva.example.com",
            "XN--BCHER-KVA.example.com",
            443,
            true,
        ),
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
fn denied_hosts_are_taken_away_from_allowed_ones() {
    let network = Network::Hosts(
        [
            "*.example.org",
            "api.example.com:8443",
            "!ads.example.org",
            "!*.private.example.org:443",
        ]
        .map(pattern)
        .to_vec(),
    );
    for (name, port, expected) in [
        ("deb.example.org", 443, true),
        ("ads.example.org", 443, false),
        ("ads.example.org", 80, false),
        ("a.ads.example.org", 443, true),
        ("a.private.example.org", 443, false),
        ("a.private.example.org", 80, true),
        ("api.example.com", 8443, true),
        ("other.example.com", 443, false),
    ] {
        assert_eq!(network.allows(&host(name), port), expected, "{name}:{port}");
    }
    // A reader that knows no denied hosts does not take one for an allowed one.
    let denied = pattern("!ads.example.org");
    assert!(!denied.matches(&host("ads.example.org"), 443));
    assert_eq!(
        pattern("ads.example.org:8443,private").denied().to_string(),
        "!ads.example.org:8443"
    );
    assert!("!ads.example.org,private".parse::<HostPattern>().is_err());
    assert!(!Network::Off.allows(&host("deb.example.org"), 443));
}

#[test]
fn patterns_have_a_canonical_form() {
    for (text, expected) in [
        ("Example.com.", "example.com"),
        ("*.Example.org.:443", "*.example.org:443"),
        ("!Ads.Example.org", "!ads.example.org"),
    ] {
        assert_eq!(pattern(text).to_string(), expected);
        let json = serde_json::to_value(pattern(text)).expect("serializes");
        assert_eq!(json, expected);
    }
}

#[test]
fn addresses_are_not_names_in_any_spelling() {
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
fn invalid_hosts_are_rejected_with_advice() {
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
        "*example.org",
        "https://example.com/simple",
        "example.com/simple",
        "user@example.com",
        "bücher.example.com",
        "a..example.org",
        ".org.example.com",
        "-a.example.org",
        "a b.example.org",
        "example.com:",
        "example.com:0",
        "example.com:65536",
        "example.com:https",
        "example.com:+443",
        "example.com\n",
        "www\0.example.org",
        "%77ww.example.org",
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
    fn parsed_patterns_round_trip(text in ".{0,40}") {
        if let Ok(pattern) = text.parse::<HostPattern>() {
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        if let Ok(name) = text.parse::<HostName>() {
            let again: Result<HostName, _> = name.as_str().parse();
            prop_assert_eq!(again, Ok(name));
        }
    }

    #[test]
    fn almost_valid_names_round_trip(text in "[a-z0-9xX.*:\\[\\]-]{0,20}") {
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
