//! The public addresses of the internet.
//!
//! Whatever connects on behalf of untrusted code refuses all others: this machine, its networks, services that clouds provide there (instance metadata
//! with credentials at 169.254.169.254), and addresses that embed another one. The source is IANA's
//! special-purpose registries, <https://www.iana.org/assignments/iana-ipv4-special-registry> and
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>.

mod own;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use self::own::is_own;

/// IPv4 networks that are not public: address and prefix length.
const NOT_PUBLIC_V4: [([u8; 4], u32); 16] = [
    ([0, 0, 0, 0], 8),        // this network
    ([10, 0, 0, 0], 8),       // private
    ([100, 64, 0, 0], 10),    // carrier-grade NAT; Alibaba's metadata
    ([127, 0, 0, 0], 8),      // loopback
    ([168, 63, 129, 16], 32), // nominally public, but Azure's host agent
    ([169, 254, 0, 0], 16),   // link-local; metadata of AWS, Google, Azure and others
    ([172, 16, 0, 0], 12),    // private
    ([192, 0, 0, 0], 24),     // protocol assignments; Oracle's metadata
    ([192, 0, 2, 0], 24),     // documentation
    ([192, 88, 99, 0], 24),   // 6to4 relays
    ([192, 168, 0, 0], 16),   // private
    ([198, 18, 0, 0], 15),    // benchmarks
    ([198, 51, 100, 0], 24),  // documentation
    ([203, 0, 113, 0], 24),   // documentation
    ([224, 0, 0, 0], 4),      // multicast
    ([240, 0, 0, 0], 4),      // reserved, broadcast
];

/// IPv6 networks within 2000::/3 that are not public. Nothing outside it is.
const NOT_PUBLIC_V6: [([u16; 2], u32); 3] = [
    ([0x2001, 0x0000], 23), // protocol assignments: Teredo, ORCHID, benchmarks
    ([0x2001, 0x0db8], 32), // documentation
    ([0x3fff, 0x0000], 20), // documentation
];

/// Returns whether an address is public. One that embeds an IPv4 address is as public as that.
///
/// A public address can still be one of this machine; see [`is_own`].
///
/// ```
/// use cantle_core::network::is_public;
///
/// assert!(is_public([8, 8, 8, 8].into()));
/// assert!(!is_public([169, 254, 169, 254].into()));
/// ```
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match embedded_v4(address) {
            Some(address) => is_public_v4(address),
            None => is_public_v6(address),
        },
    }
}

/// IPv4 networks that no name may lead to: no machine of a private network has an address of theirs, or it gives out
/// credentials.
const NEVER_V4: [([u8; 4], u32); 8] = [
    ([0, 0, 0, 0], 8),          // this network
    ([127, 0, 0, 0], 8),        // loopback
    ([169, 254, 0, 0], 16),     // link-local; metadata of AWS, Google, Azure and others
    ([168, 63, 129, 16], 32),   // Azure's host agent
    ([100, 100, 100, 200], 32), // Alibaba's metadata
    ([192, 0, 0, 0], 24),       // Oracle's metadata
    ([224, 0, 0, 0], 4),        // multicast
    ([255, 255, 255, 255], 32), // broadcast
];

/// Unique local addresses at which clouds give out metadata and credentials: Amazon (for machines and for pods), Google,
/// Oracle, Alibaba, Akamai and Scaleway.
const METADATA_V6: [Ipv6Addr; 7] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200),
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

/// Returns whether an address that is not public may be that of a host in a private network, as opposed to one of this
/// machine, of the link, or of a service that gives out credentials.
///
/// ```
/// use cantle_core::network::may_be_private_host;
///
/// assert!(may_be_private_host([10, 1, 2, 3].into()));
/// assert!(!may_be_private_host([127, 0, 0, 1].into()));
/// assert!(!may_be_private_host([169, 254, 169, 254].into()));
/// ```
pub fn may_be_private_host(address: IpAddr) -> bool {
    let v4 = match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(address) => embedded_v4(address),
    };
    match (v4, address) {
        (Some(address), _) => !NEVER_V4
            .iter()
            .any(|network| is_in_network(address, network)),
        // Unique local addresses.
        (None, IpAddr::V6(address)) => {
            address.is_unique_local() && !METADATA_V6.contains(&address) || is_public_v6(address)
        }
        (None, IpAddr::V4(_)) => false,
    }
}

fn is_in_network(address: Ipv4Addr, (network, length): &([u8; 4], u32)) -> bool {
    let different = address.to_bits() ^ Ipv4Addr::from(*network).to_bits();
    different.leading_zeros() >= *length
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let mut networks = NOT_PUBLIC_V4.iter();
    !networks.any(|network| is_in_network(address, network))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let start = (u32::from(first) << 16) | u32::from(second);
    let in_network = |([first, second], length): &([u16; 2], u32)| {
        let different = start ^ ((u32::from(*first) << 16) | u32::from(*second));
        different.leading_zeros() >= *length
    };
    first >> 13 == 0b001 && !NOT_PUBLIC_V6.iter().any(in_network)
}

/// Returns the IPv4 address that a connection to an IPv6 address reaches: one that is mapped, or embedded for
/// NAT64 (well-known prefix) or 6to4.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, high, low] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_that_are_not_public_are_refused_in_every_form() {
        let not_public = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.0.1",
            "168.63.129.16",
            "169.254.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ];
        for text in not_public {
            let v4: Ipv4Addr = text.parse().unwrap();
            assert!(!is_public(v4.into()), "{text}");
            let [a, b, c, d] = v4.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            for form in [
                v4.to_ipv6_mapped(),
                v4.to_ipv6_compatible(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                assert!(!is_public(form.into()), "{text} as {form}");
            }
        }
        for text in [
            "::",
            "::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "3fff::1",
            "5f00::1",
            "4000::1",
            "64:ff9b:1::808:808",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn no_private_host_is_this_machine_or_gives_out_credentials() {
        for text in [
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "203.0.113.80",
            "240.0.0.1",
            "fd12::1",
        ] {
            assert!(may_be_private_host(text.parse().unwrap()), "{text}");
        }
        for text in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:100::100:200",
            "fd00:a9fe:a9fe::1",
            "fd00:42::42",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
        ] {
            assert!(!may_be_private_host(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn public_addresses_are_accepted() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.0",
            "126.0.0.1",
            "128.0.0.1",
            "151.101.0.223",
            "168.63.129.15",
            "169.253.255.255",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "192.167.0.1",
            "192.169.0.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a04:4e42::223",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn addresses_that_std_calls_special_are_refused(bits in any::<u32>()) {
            let address = Ipv4Addr::from_bits(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_multicast() || address.is_broadcast() || address.is_documentation()
                || address.is_unspecified();
            prop_assert!(!(special && is_public(address.into())));
            prop_assert_eq!(is_public(address.into()), is_public(address.to_ipv6_mapped().into()));
        }
    }
}
