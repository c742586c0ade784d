//! Placements `ZONE@CLOUDID`: choosing one, and holding a cloud to it.

use std::hash::{DefaultHasher, Hash, Hasher};

use crawl_provider_sdk::{Error, Finding, Identity, Invalid, Request};

use crate::settings::{Settings, unknown_location};
use crate::wire::{Cloud, Instance, Zone};

/// A zone of one particular cloud.
#[derive(Debug)]
pub struct Placement {
    pub zone: String,
    cloud_id: String,
}

impl Placement {
    /// The one that was stored for this identity.
    pub fn of(identity: &Identity) -> Result<Self, Error> {
        match identity.placement.split_once('@') {
            Some((zone, cloud_id)) if !zone.is_empty() && !cloud_id.is_empty() => {
                Ok(Self { zone: zone.into(), cloud_id: cloud_id.into() })
            }
            _ => Err(Error::config_missing(format!(
                "placement {:?} is not ZONE@CLOUDID; it was not made by this plugin",
                identity.placement
            ))
            .reason("PlacementUnknown")),
        }
    }

    /// Fails when another cloud answers than the one where the instance was placed.
    pub fn check_cloud(&self, cloud: &Cloud) -> Result<(), Error> {
        self.check_id(&cloud.cloud_id)
    }

    /// The same, by what the instance says about itself.
    pub fn check_instance(&self, instance: &Instance) -> Result<(), Error> {
        self.check_id(&instance.cloud_id)
    }

    fn check_id(&self, found: &str) -> Result<(), Error> {
        if found == self.cloud_id {
            return Ok(());
        }
        Err(Error::config_missing(format!(
            "cloud {found} answers where cloud {} is expected; point the connection back, or abandon the Proxy with \
             the annotation crawl.example.com/skip-cleanup",
            self.cloud_id
        ))
        .reason("BackendChanged")
        .target(&self.zone))
    }

    pub fn zone_missing(&self) -> Error {
        Error::config_missing(format!("the cloud has no zone {}", self.zone)).reason("ZoneMissing").target(&self.zone)
    }
}

/// The healthy zone with the smallest share of its capacity used.
pub fn choose(cloud: &Cloud, settings: &Settings, request: &Request, avoid: &[String]) -> Result<String, Error> {
    let placement = |zone: &Zone| format!("{}@{}", zone.name, cloud.cloud_id);
    let zones = usable(cloud, settings, request.location.as_deref())?;
    let best = zones
        .iter()
        .filter(|zone| obstacle(zone).is_none() && !avoid.contains(&placement(zone)))
        // Equal shares are told apart by the proxy: a burst of places, asked before any of them is made, spreads.
        .min_by(|a, b| share(a, b).then_with(|| lot(request, a).cmp(&lot(request, b))));
    best.map(|zone| placement(zone)).ok_or_else(|| {
        let why: Vec<_> = zones
            .iter()
            .map(|zone| format!("{}: {}", zone.name, obstacle(zone).map_or("avoided".into(), |(_, text)| text)))
            .collect();
        Error::exhausted(format!("no zone takes the instance ({})", why.join("; "))).reason("NoZone")
    })
}

/// One finding per zone that the config names, else per zone of the cloud.
pub fn findings(cloud: &Cloud, settings: &Settings) -> Vec<Finding> {
    let finding = |zone: &Zone| match obstacle(zone) {
        None => Finding::ok(&zone.name, ""),
        Some((reason, text)) => Finding::bad(&zone.name, reason, text),
    };
    let Some(names) = &settings.zones else {
        return cloud.zones.iter().map(finding).collect();
    };
    names
        .iter()
        .map(|name| match cloud.zones.iter().find(|zone| zone.name == *name) {
            Some(zone) => finding(zone),
            None => Finding::bad(name, "ZoneMissing", format!("the cloud has no zone {name}; correct config.zones")),
        })
        .collect()
}

/// The zones that config and location leave; at least one.
fn usable<'a>(cloud: &'a Cloud, settings: &Settings, location: Option<&str>) -> Result<Vec<&'a Zone>, Error> {
    let allowed = |zone: &&Zone| settings.zones.as_ref().is_none_or(|names| names.contains(&zone.name));
    let zones: Vec<_> = cloud.zones.iter().filter(allowed).collect();
    let Some(location) = location else {
        return match zones.is_empty() {
            true => Err(Error::config_missing("the cloud has none of the zones in config.zones").reason("ZoneMissing")),
            false => Ok(zones),
        };
    };
    match zones.iter().find(|zone| zone.name == location) {
        Some(zone) => Ok(vec![zone]),
        None => {
            let names: Vec<_> = zones.iter().map(|zone| zone.name.clone()).collect();
            Err(Invalid { errors: vec![unknown_location(location, &names)] }.into())
        }
    }
}

/// Why a zone cannot take creates. Without counts: they would change a status with every instance.
fn obstacle(zone: &Zone) -> Option<(&'static str, String)> {
    if !zone.healthy {
        let said = zone.message.as_deref().filter(|text| !text.is_empty()).unwrap_or("it gives no reason");
        Some(("ZoneUnhealthy", format!("unhealthy: {said}")))
    } else if zone.instances >= zone.capacity {
        Some(("ZoneFull", "full".into()))
    } else {
        None
    }
}

/// Compares instances / capacity without dividing.
fn share(a: &Zone, b: &Zone) -> std::cmp::Ordering {
    let cross = |x: &Zone, y: &Zone| u128::from(x.instances) * u128::from(y.capacity);
    cross(a, b).cmp(&cross(b, a))
}

/// The same for every call about one proxy.
fn lot(request: &Request, zone: &Zone) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&request.identity.owner.proxy_uid, &zone.name).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
