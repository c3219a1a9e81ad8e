//! Merges orders like kube-apiserver: the relative order of each list is kept, and names that
//! no list orders are sorted alphabetically.

use std::collections::{BTreeMap, BTreeSet};

/// Merges lists of names. If they contradict each other, the result is alphabetical.
pub fn merge_orders<'a>(lists: &[Vec<&'a str>]) -> Vec<&'a str> {
    let mut followers = BTreeMap::<&str, BTreeSet<&str>>::new();
    let mut before = BTreeMap::<&str, usize>::new();
    for list in lists {
        for (at, name) in list.iter().enumerate() {
            before.entry(name).or_default();
            let following = followers.entry(name).or_default();
            if let Some(next) = list.get(at + 1)
                && following.insert(next)
            {
                *before.entry(next).or_default() += 1;
            }
        }
    }
    // A list with all names determines the order, whatever the other lists are.
    let whole = lists.iter().find(|list| {
        list.len() == before.len() && list.iter().collect::<BTreeSet<_>>().len() == list.len()
    });
    if let Some(list) = whole {
        return list.clone();
    }
    let all: Vec<_> = before.keys().copied().collect();
    let mut free: BTreeSet<_> = before
        .iter()
        .filter_map(|(name, count)| (*count == 0).then_some(*name))
        .collect();
    let mut order = Vec::with_capacity(all.len());
    while let Some(name) = free.pop_first() {
        order.push(name);
        for next in followers.get(name).into_iter().flatten() {
            if let Some(count) = before.get_mut(next) {
                *count -= 1;
                if *count == 0 {
                    free.insert(next);
                }
            }
        }
    }
    if order.len() == all.len() { order } else { all }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn merged(lists: &[&str]) -> String {
        let lists: Vec<Vec<&str>> = lists
            .iter()
            .map(|list| list.split_whitespace().collect())
            .collect();
        merge_orders(&lists).join(" ")
    }

    #[test]
    fn relative_order_is_kept_and_the_rest_is_alphabetical() {
        let rows: [(&[&str], &str); 9] = [
            (&[], ""),
            (&["b a"], "b a"),
            (&["a b c", "b c"], "a b c"),
            (&["a c", "b c"], "a b c"),
            (&["z y", "y x"], "z y x"),
            (&["v1 v1beta1", "v1 v2"], "v1 v1beta1 v2"),
            // The first list with all names takes precedence over contradictions.
            (&["a b", "b a"], "a b"),
            // Contradictions without such a list.
            (&["a b c", "b a d"], "a b c d"),
            (&["", "a"], "a"),
        ];
        for (lists, expected) in rows {
            assert_eq!(merged(lists), expected, "{lists:?}");
        }
    }

    proptest! {
        #[test]
        fn each_name_occurs_once(lists in proptest::collection::vec(
            proptest::collection::vec("[a-e]", 0..6), 0..5))
        {
            let lists: Vec<Vec<&str>> = lists
                .iter()
                .map(|list| list.iter().map(String::as_str).collect())
                .collect();
            let all: BTreeSet<_> = lists.iter().flatten().copied().collect();
            let order = merge_orders(&lists);
            prop_assert_eq!(order.len(), all.len());
            prop_assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), all);
            prop_assert_eq!(merge_orders(std::slice::from_ref(&order)), order);
        }
    }
}
