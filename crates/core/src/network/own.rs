//! The addresses of this machine.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::embedded_v4;

/// Addresses that no machine has, reserved for documentation.
const UNASSIGNED_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const UNASSIGNED_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Returns whether a connection to an address now reaches this machine.
///
/// The kernel is asked: a socket can be bound exactly to its own addresses, those of all interfaces and those
/// routed to it. No packet is sent.
pub fn is_own(address: IpAddr) -> bool {
    let embedded = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => embedded_v4(address),
    };
    has_address(address, bind)
        || embedded.is_some_and(|embedded| has_address(embedded.into(), bind))
}

fn bind(address: IpAddr) -> io::Result<UdpSocket> {
    UdpSocket::bind((address, 0))
}

/// Whether this machine has an address, by what `bind` returns.
fn has_address(address: IpAddr, bind: impl Fn(IpAddr) -> io::Result<UdpSocket>) -> bool {
    let unassigned: IpAddr = match address {
        IpAddr::V4(_) => UNASSIGNED_V4.into(),
        IpAddr::V6(_) => UNASSIGNED_V6.into(),
    };
    match bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => false,
        Ok(_) if bind(unassigned).is_err() => true,
        // The machine allows binding to any address (`net.ipv4.ip_nonlocal_bind`), or now to none.
        _ => is_listed(address),
    }
}

/// Whether the kernel lists an address as one of this machine, or does not tell.
fn is_listed(address: IpAddr) -> bool {
    let path = match address {
        IpAddr::V4(_) => "/proc/net/fib_trie",
        IpAddr::V6(_) => "/proc/net/if_inet6",
    };
    let list = match fs::read_to_string(path) {
        Ok(list) => list,
        // There is none for IPv6 on a machine without it.
        Err(error) => return address.is_ipv4() || error.kind() != io::ErrorKind::NotFound,
    };
    match address {
        // The address, and in the next line its prefix length and type.
        IpAddr::V4(address) => {
            let leaf = format!("|-- {address}");
            let mut lines = list.lines().map(str::trim);
            std::iter::from_fn(|| lines.find(|line| *line == leaf).and(lines.next()))
                .any(|route| route.ends_with("host LOCAL"))
        }
        IpAddr::V6(address) => {
            let digits = format!("{:032x} ", address.to_bits());
            list.lines().any(|line| line.starts_with(&digits))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_recognized() {
        for (address, expected) in [
            ("127.0.0.1", true),
            ("127.1.2.3", true),
            ("::ffff:127.0.0.1", true),
            ("64:ff9b::127.0.0.1", true),
            ("2002:7f00:1::1", true),
            ("8.8.8.8", false),
            ("2606:4700::1111", false),
        ] {
            assert_eq!(is_own(address.parse().unwrap()), expected, "{address}");
        }
    }

    /// As without free descriptors, which connections to a proxy can use up.
    #[test]
    fn own_addresses_are_recognized_where_no_socket_can_be_bound() {
        let refuse =
            |_: IpAddr| -> io::Result<UdpSocket> { Err(io::ErrorKind::PermissionDenied.into()) };
        for (address, expected) in [
            ("127.0.0.1", true),
            ("8.8.8.8", false),
            ("2606:4700::1111", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(has_address(address, refuse), expected, "{address}");
        }
    }
}
