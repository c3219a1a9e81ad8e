//! Properties of the placement over any servers.

use http::Method;
use proptest::prelude::*;
use skewbridge_k8s_api::request_info::DecodedPath;

use super::tests::{
    cluster, peer, placed, placement_of, served, version, with_fields, with_policies,
    with_policy_kind,
};
use super::*;

proptest! {
    #[test]
    fn the_decision_does_not_depend_on_the_order_of_servers(
        local in 30_u16..40,
        component in 30_u16..40,
        minors in prop::collection::vec(prop::option::of(30_u16..40), 0..6),
        rotation in 0_usize..6,
    ) {
        let now = Instant::now();
        let peers = || minors.iter().enumerate().map(|(index, minor)| {
            peer(&format!("peer-{index}"), "pods", minor.map(version), now)
        });
        let mut turned: Vec<_> = peers().collect();
        if !turned.is_empty() {
            let middle = rotation % turned.len();
            turned.rotate_left(middle);
        }
        let local = Some(version(local));
        let component = Some(version(component));
        let first = placed(component, &cluster(local, peers().collect()), now);
        let second = placed(component, &cluster(local, turned), now);
        prop_assert_eq!(first, second);
    }

    #[test]
    fn a_server_that_satisfies_the_rule_is_chosen_if_there_is_one(
        local in 30_u16..40,
        component in 30_u16..40,
        minors in prop::collection::vec(30_u16..40, 0..6),
    ) {
        let now = Instant::now();
        let peers = minors.iter().enumerate().map(|(index, minor)| {
            peer(&format!("peer-{index}"), "pods", Some(version(*minor)), now)
        });
        let cluster = cluster(Some(version(local)), peers.collect());
        let got = placed(Some(version(component)), &cluster, now);
        let exists = local >= component || minors.iter().any(|minor| *minor >= component);
        prop_assert_eq!(!got.ends_with("not version"), exists, "{}", got);
        if local >= component {
            prop_assert_eq!(got, "local");
        }
    }

    /// With any servers available: a write only reaches a server that lacks fields if the placement
    /// says so, because then the write is checked.
    #[test]
    fn a_write_never_reaches_a_server_without_every_field_unchecked(
        servers in prop::collection::vec((30_u16..40, any::<[bool; 3]>()), 0..6),
        (serves_locally, local_is_complete) in any::<(bool, bool)>(),
        method in prop::sample::select(vec!["POST", "PUT", "PATCH", "DELETE", "GET"]),
        rotation in 0_usize..6,
    ) {
        let now = Instant::now();
        let build = |rotation: usize| -> Vec<_> {
            let mut built: Vec<_> = servers.iter().enumerate().map(|(index, (minor, facts))| {
                let [_, published, is_healthy] = *facts;
                let name = format!("peer-{index}");
                let server = peer(&name, "pods", Some(version(*minor)), now);
                if !is_healthy {
                    server.health.record_failure(now);
                }
                Peer { published, ..server }
            }).collect();
            let middle = rotation.checked_rem(built.len()).unwrap_or(0);
            built.rotate_left(middle);
            built
        };
        let names: Vec<_> = (0..servers.len()).map(|index| format!("peer-{index}")).collect();
        let is_complete = |name: &str| match name {
            "local" => local_is_complete,
            name => names.iter().zip(&servers).any(|(it, (_, facts))| it == name && facts[0]),
        };
        let mut complete: Vec<_> = (names.iter())
            .filter(|name| is_complete(name))
            .map(|name| Some(name.as_str()))
            .collect();
        complete.extend(local_is_complete.then_some(None));
        let facts = |rotation| {
            let mut cluster = cluster(Some(version(34)), build(rotation));
            if !serves_locally {
                cluster.local = Some(served("nodes", Some(version(34))));
            }
            with_fields(cluster, &complete)
        };
        let input = PlacementInput { fields: FieldGuard::All, ..PlacementInput::default() };
        let request = Method::from_bytes(method.as_bytes()).unwrap();
        let got = placement_of(&request, input, &facts(0), now);
        prop_assert_eq!(&got, &placement_of(&request, input, &facts(rotation), now));
        let (tried, unmet) = got.split_once("; not ").unwrap_or((&got, ""));
        let tried = || tried.split([',', '+', ' ']).filter(|name| !name.is_empty());
        let is_write = method != "GET";
        if is_write && !unmet.contains("fields") {
            prop_assert!(tried().all(is_complete), "{}", got);
        }
        // If a server is available and complete, the best server is available and complete.
        let best = tried().next();
        let is_best = |(_, facts): &(u16, [bool; 3])| facts.iter().all(|it| *it);
        if servers.iter().any(is_best) || (serves_locally && local_is_complete) {
            prop_assert!(best.is_some_and(is_complete), "{}", got);
        }
        let path = DecodedPath::new("/api/v1/pods").unwrap();
        let info = RequestInfo::parse(&request, &path, None);
        let among_peers = place_among_peers(&info, input, &facts(rotation), now);
        if is_write {
            let mut identities = among_peers.iter().flatten().map(|it| it.identity.to_string());
            prop_assert!(identities.all(|name| is_complete(&name)));
        }
    }

    /// With all rules, over any facts: the order of servers does not matter, and a server that does
    /// not serve the request, or does not enforce a policy that matches it, never gets it. An
    /// unavailable server is not chosen before an available one.
    #[test]
    fn only_serving_and_enforcing_servers_are_chosen_in_any_order(
        servers in prop::collection::vec((30_u16..40, any::<[bool; 4]>(), 0..4_usize), 0..6),
        (is_write, has_policies, local_is_complete, local_is_available) in any::<(bool, bool, bool, bool)>(),
        component in prop::option::of(30_u16..40),
        rotation in 0_usize..6,
    ) {
        let now = Instant::now();
        let mut running = Vec::new();
        let mut build = || -> Vec<_> {
            servers.iter().enumerate().map(|(index, (minor, [serves, enforces, _, is_available], load))| {
                let name = format!("peer-{index}");
                let mut server = match enforces {
                    true => with_policy_kind(&name, now),
                    false => peer(&name, "pods", Some(version(*minor)), now),
                };
                if !serves {
                    server.served = Some(served("nodes", Some(version(*minor))));
                }
                server.published = *is_available;
                running.extend((0..*load).map(|_| server.health.track_request()));
                server
            }).collect()
        };
        let names: Vec<_> = (0..servers.len()).map(|index| format!("peer-{index}")).collect();
        let mut complete: Vec<_> = (names.iter().zip(&servers))
            .filter(|(_, (_, [_, _, is_complete, _], _))| *is_complete)
            .map(|(name, _)| Some(name.as_str()))
            .collect();
        complete.extend(local_is_complete.then_some(None));
        let facts = |peers| {
            let cluster = with_fields(cluster(Some(version(34)), peers), &complete);
            cluster.local_health.probed(local_is_available, 0);
            if has_policies { with_policies(cluster, "*") } else { cluster }
        };
        let mut turned = build();
        if !turned.is_empty() {
            let middle = rotation % turned.len();
            turned.rotate_left(middle);
        }
        let input = PlacementInput {
            component: component.map(version),
            ..PlacementInput::default()
        };
        let method = if is_write { Method::POST } else { Method::GET };
        let got = placement_of(&method, input, &facts(build()), now);
        prop_assert_eq!(&got, &placement_of(&method, input, &facts(turned), now));
        let chosen = got.split("; not ").next().unwrap_or_default();
        let mut was_unavailable = false;
        let mut chosen_names = chosen.split([',', '+', ' ']).filter(|it| !it.is_empty());
        for name in chosen_names.clone() {
            let known = names.iter().zip(&servers).find(|(it, _)| *it == name);
            let is_available = known.map_or(local_is_available, |(_, (_, [.., it], _))| *it);
            // The local server is the last one that is tried, also if it is available.
            prop_assert!(name == "local" || !was_unavailable || !is_available, "{}", got);
            was_unavailable |= !is_available;
            if let Some((_, (_, [serves, enforces, ..], _))) = known {
                prop_assert!(serves, "{}", got);
                prop_assert!(*enforces || !is_write || !has_policies, "{}", got);
            }
        }
        let can_serve = |[serves, enforces, _, is_available]: &[bool; 4]| {
            *serves && *is_available && (*enforces || !is_write || !has_policies)
        };
        if !local_is_available && servers.iter().any(|(_, it, _)| can_serve(it)) {
            prop_assert_ne!(chosen_names.next(), Some("local"), "{}", got);
        }
        if is_write && has_policies {
            prop_assert!(!chosen.contains("local"), "{}", got);
        }
    }
}
