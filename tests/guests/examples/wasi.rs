//! Its `get` tries what WASI could give, and answers in the instance's message what came of it; its `create` draws at random.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest, instance};

struct Wasi;

impl Fixture for Wasi {
    const NAME: &'static str = "wasi";

    fn get(_config: &str, identity: &Identity) -> Result<Presence, Error> {
        let mut found = instance(Self::NAME, identity);
        found.message = Some(report());
        Ok(Presence::Present(found))
    }

    fn create(_config: &str, request: &Request) -> Result<Instance, Error> {
        let mut made = instance(Self::NAME, &request.identity);
        made.message = Some(format!("{} bytes at random", drawn()));
        Ok(made)
    }
}

#[cfg(target_arch = "wasm32")]
fn drawn() -> usize {
    wasip2::random::random::get_random_bytes(16).len()
}

#[cfg(not(target_arch = "wasm32"))]
fn drawn() -> usize {
    0
}

#[cfg(target_arch = "wasm32")]
fn report() -> String {
    use wasip2::cli::environment::{get_arguments, get_environment};
    use wasip2::filesystem::preopens::get_directories;
    use wasip2::filesystem::types::{DescriptorFlags, OpenFlags, PathFlags};
    use wasip2::sockets::instance_network::instance_network;
    use wasip2::sockets::network::{IpAddressFamily, IpSocketAddress, Ipv4SocketAddress};
    use wasip2::sockets::tcp_create_socket::create_tcp_socket;

    let mut said = vec![format!("environment {}, arguments {}", get_environment().len(), get_arguments().len())];
    let directories = get_directories();
    let names: Vec<_> = directories.iter().map(|(_, name)| name.as_str()).collect();
    said.push(format!("folders {names:?}"));
    if let Some((folder, _)) = directories.first() {
        for path in ["hello.txt", "../secret.txt", "/etc/hostname", "link.txt"] {
            let opened = folder.open_at(PathFlags::SYMLINK_FOLLOW, path, OpenFlags::empty(), DescriptorFlags::READ);
            said.push(match opened.and_then(|file| file.read(64, 0)) {
                Ok((bytes, _)) => format!("{path}: read {:?}", String::from_utf8_lossy(&bytes)),
                Err(code) => format!("{path}: {}", code.name()),
            });
        }
        let written = folder.open_at(PathFlags::empty(), "new.txt", OpenFlags::CREATE, DescriptorFlags::WRITE);
        said.push(format!("new.txt: {}", written.map_or_else(|code| code.name().to_owned(), |_| "made".into())));
        let removed = folder.unlink_file_at("hello.txt");
        said.push(format!("unlink: {}", removed.map_or_else(|code| code.name().to_owned(), |()| "done".into())));
    }
    let connected = create_tcp_socket(IpAddressFamily::Ipv4).and_then(|socket| {
        let to = IpSocketAddress::Ipv4(Ipv4SocketAddress { port: 80, address: (127, 0, 0, 1) });
        socket.start_connect(&instance_network(), to)
    });
    said.push(format!("connect: {}", connected.map_or_else(|code| code.name().to_owned(), |()| "begun".into())));
    said.join("; ")
}

#[cfg(not(target_arch = "wasm32"))]
fn report() -> String {
    "no guest".into()
}

export_provider!(Guest<Wasi>);
