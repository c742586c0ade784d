//! The whole operator in a memory control group of 128 MiB, with a Proxy of each example.

use std::fs;

use proxy_operator::plugin::compiler::need;
use proxy_operator::plugin::contract;
use proxy_operator::plugin::engine::Runtime;
use proxy_operator_tests::binary;
use proxy_operator_tests::cgroup::Group;
use proxy_operator_tests::lab::{Lab, proxy_of};

const LIMIT: u64 = 128 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_with_both_examples_stays_inside_128_mib() {
    let Some(folder) = crate::examples() else { return };
    let Some(group) = Group::make(LIMIT) else { return };
    let mut lab = Lab::without_provider().await;
    lab.take_operator().stop();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, lab.path("plugins").join(path.file_name().unwrap())).unwrap();
    }
    lab.start_operator_in(Some(group.path().to_owned())).await;
    let names: Vec<String> = crate::EXAMPLES.iter().map(|name| format!("p-{name}")).collect();
    for name in crate::EXAMPLES {
        lab.put(
            &format!("{name}.yaml"),
            &lab.provider(name, "").replace("{name: sandbox}", &format!("{{name: {name}}}")),
        );
        lab.put(&format!("p-{name}.yaml"), &proxy_of(name, &format!("p-{name}"), ""));
    }
    lab.wait_ready(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (peak, kills) = (group.peak(), group.kills());
    println!("peak with JavaScript, Python, sandbox and static: {} MiB of {}", peak >> 20, LIMIT >> 20);
    assert_eq!(kills, 0);
    assert!(peak > 0);
    lab.take_operator().stop();
}

/// The limits on the compiler's process follow from the size of the code: the larger it is, the less there is to spare.
#[test]
fn the_examples_compile_where_there_is_just_what_their_size_says() {
    let Some(folder) = crate::examples() else { return };
    for name in crate::EXAMPLES {
        let component = fs::read(folder.join(format!("{name}.wasm"))).unwrap();
        let most = need(contract::code_bytes(&component));
        let outcome = Runtime::new(None).unwrap().with_compiler(binary(), most).code("digest", &component);
        assert!(outcome.is_ok(), "{name}: {}", outcome.err().unwrap());
    }
}
