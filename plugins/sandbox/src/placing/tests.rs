use super::*;
use crawl_provider_sdk::{ErrorKind, testing};

fn mk_zone(name: &str, instances: u64, capacity: u64) -> Zone {
    Zone { name: name.into(), healthy: true, message: None, instances, capacity }
}

fn mk_cloud(zones: Vec<Zone>) -> Cloud {
    Cloud { cloud_id: "c1".into(), zones }
}

fn mk_settings(zones: &[&str]) -> Settings {
    let config = serde_json::json!({ "zones": zones }).to_string();
    Settings::read(&config, None).unwrap()
}

fn choose_in(cloud: &Cloud, location: Option<&str>, avoid: &[&str]) -> Result<String, Error> {
    let mut request = testing::request();
    request.location = location.map(str::to_owned);
    let avoid: Vec<_> = avoid.iter().map(|place| place.to_string()).collect();
    choose(cloud, &Settings::default(), &request, &avoid)
}

#[test]
fn the_least_filled_zone_is_chosen_by_share() {
    let cloud = mk_cloud(vec![mk_zone("a", 5, 10), mk_zone("b", 6, 100), mk_zone("c", 2, 4)]);
    assert_eq!(choose_in(&cloud, None, &[]).unwrap(), "b@c1");
    assert_eq!(choose_in(&cloud, Some("c"), &[]).unwrap(), "c@c1");
}

#[test]
fn avoided_full_and_unhealthy_zones_are_passed_over() {
    let mut sick = mk_zone("sick", 0, 10);
    sick.healthy = false;
    sick.message = Some("power".into());
    let cloud = mk_cloud(vec![mk_zone("a", 0, 10), mk_zone("b", 9, 10), mk_zone("full", 3, 3), sick]);
    assert_eq!(choose_in(&cloud, None, &["a@c1"]).unwrap(), "b@c1");
    // A place in another cloud of the same zone name is another place.
    assert_eq!(choose_in(&cloud, None, &["a@c0"]).unwrap(), "a@c1");
    let error = choose_in(&cloud, None, &["a@c1", "b@c1"]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Exhausted);
    for part in ["a: avoided", "full: full", "sick: unhealthy: power"] {
        assert!(error.message.contains(part), "{}", error.message);
    }
}

#[test]
fn equal_zones_share_a_burst_and_one_proxy_always_gets_the_same() {
    let cloud = mk_cloud(vec![mk_zone("a", 0, 10), mk_zone("b", 0, 10), mk_zone("c", 0, 10)]);
    let place = |n: u32| {
        let mut request = testing::request();
        request.identity.owner.proxy_uid = format!("uid-{n}");
        choose(&cloud, &Settings::default(), &request, &[]).unwrap()
    };
    let hits = |name: &str| (0..90).filter(|n| place(*n) == name).count();
    assert!(["a@c1", "b@c1", "c@c1"].iter().all(|name| hits(name) > 15));
    assert_eq!(place(1), place(1));
}

#[test]
fn an_unknown_location_lists_the_valid_ones() {
    let cloud = mk_cloud(vec![mk_zone("a", 0, 10), mk_zone("b", 0, 10)]);
    let error = choose_in(&cloud, Some("z"), &[]).unwrap_err();
    let ErrorKind::InvalidSpec(fields) = error.kind else { panic!("{error:?}") };
    assert_eq!(fields[0].pointer, "/location");
    assert!(fields[0].message.ends_with("accepted: a, b"));
}

#[test]
fn zones_of_the_config_bound_both_choice_and_findings() {
    let cloud = mk_cloud(vec![mk_zone("a", 0, 10), mk_zone("b", 10, 10)]);
    let settings = mk_settings(&["b", "gone"]);
    let error = choose(&cloud, &settings, &testing::request(), &[]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Exhausted);
    let found: Vec<_> =
        findings(&cloud, &settings).into_iter().map(|one| (one.target, one.healthy, one.reason)).collect();
    assert_eq!(found, [("b".into(), false, "ZoneFull".into()), ("gone".into(), false, "ZoneMissing".to_string())]);
    let none = choose(&cloud, &mk_settings(&["gone"]), &testing::request(), &[]).unwrap_err();
    assert_eq!(none.kind, ErrorKind::ConfigMissing);
}

#[test]
fn another_cloud_at_the_address_is_never_taken_for_the_old_one() {
    let mut identity = testing::identity();
    identity.placement = "a@c0".into();
    let error = Placement::of(&identity).unwrap().check_cloud(&mk_cloud(vec![])).unwrap_err();
    assert_eq!((error.kind, error.reason.as_deref()), (ErrorKind::ConfigMissing, Some("BackendChanged")));
    identity.placement = "nonsense".into();
    assert_eq!(Placement::of(&identity).unwrap_err().kind, ErrorKind::ConfigMissing);
}
