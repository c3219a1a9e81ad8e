//! Fields as trees whose equal subtrees are stored once: all kinds with a pod template share its
//! fields, so that a whole server takes some 100 KiB.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::error::{Error, MAX_DEPTH, MAX_NODES};
use crate::fingerprint::Fingerprint;
use crate::path::Step;

/// The number of a node in its forest.
pub(crate) type NodeId = u32;

/// The steps that are possible from a value, in order.
pub(crate) type Node = Arc<[(Step, NodeId)]>;

/// The steps of a node that is being built.
pub(crate) type Steps = BTreeMap<Step, NodeId>;

/// Nodes. Those below a node have lower numbers, so that there is no cycle, and equal ones have
/// the same number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Forest {
    nodes: Vec<Node>,
    /// The number of steps from each node to its deepest leaf.
    depths: Vec<usize>,
    ids: HashMap<Node, NodeId>,
    names: BTreeSet<Arc<str>>,
}

impl Forest {
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The steps from a node.
    pub(crate) fn get(&self, id: NodeId) -> &[(Step, NodeId)] {
        let index = usize::try_from(id).unwrap_or(usize::MAX);
        self.nodes.get(index).map_or(&[], |node| node)
    }

    fn depth(&self, id: NodeId) -> usize {
        let index = usize::try_from(id).unwrap_or(usize::MAX);
        self.depths.get(index).copied().unwrap_or_default()
    }

    /// The node with these steps, which lead to nodes of this forest.
    pub(crate) fn insert(&mut self, steps: Steps) -> Result<NodeId, Error> {
        let steps = steps.into_iter().map(|(step, id)| (self.share(step), id));
        let node: Node = steps.collect();
        if let Some(id) = self.ids.get(&node) {
            return Ok(*id);
        }
        if self.nodes.len() >= MAX_NODES {
            return Err(Error::bound("MAX_NODES", MAX_NODES));
        }
        let below = node.iter().map(|(_, below)| self.depth(*below) + 1);
        let depth = below.max().unwrap_or_default();
        // All functions that recurse rely on this.
        if depth > MAX_DEPTH {
            return Err(Error::bound("MAX_DEPTH", MAX_DEPTH));
        }
        let id =
            NodeId::try_from(self.nodes.len()).map_err(|_| Error::bound("MAX_NODES", MAX_NODES))?;
        self.depths.push(depth);
        self.nodes.push(node.clone());
        self.ids.insert(node, id);
        Ok(id)
    }

    /// The step with a name that is stored once.
    fn share(&mut self, step: Step) -> Step {
        let Step::Field(name) = step else {
            return step;
        };
        if let Some(known) = self.names.get(&name) {
            return Step::Field(known.clone());
        }
        self.names.insert(name.clone());
        Step::Field(name)
    }

    /// The node with the steps of both. `unions` are those already made.
    pub(crate) fn union(
        &mut self,
        one: NodeId,
        other: NodeId,
        unions: &mut HashMap<(NodeId, NodeId), NodeId>,
    ) -> Result<NodeId, Error> {
        if one == other {
            return Ok(one);
        }
        let key = (one.min(other), one.max(other));
        if let Some(known) = unions.get(&key) {
            return Ok(*known);
        }
        let mut steps: Steps = self.get(one).iter().cloned().collect();
        for (step, below) in self.get(other).to_vec() {
            let below = match steps.get(&step) {
                Some(known) => self.union(*known, below, unions)?,
                None => below,
            };
            steps.insert(step, below);
        }
        let id = self.insert(steps)?;
        unions.insert(key, id);
        Ok(id)
    }

    /// Copies a node of another forest. `copied` are those already copied.
    pub(crate) fn copy(
        &mut self,
        from: &Self,
        id: NodeId,
        copied: &mut HashMap<NodeId, NodeId>,
    ) -> Result<NodeId, Error> {
        if let Some(known) = copied.get(&id) {
            return Ok(*known);
        }
        let mut steps = Steps::new();
        for (step, below) in from.get(id) {
            steps.insert(step.clone(), self.copy(from, *below, copied)?);
        }
        let copy = self.insert(steps)?;
        copied.insert(id, copy);
        Ok(copy)
    }

    /// The number of paths below each node.
    pub(crate) fn path_counts(&self) -> Vec<u64> {
        let mut counts: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let count = node.iter().fold(0_u64, |sum, (_, below)| {
                let below = usize::try_from(*below).unwrap_or(usize::MAX);
                let below = counts.get(below).copied().unwrap_or_default();
                sum.saturating_add(1).saturating_add(below)
            });
            counts.push(count);
        }
        counts
    }

    /// A hash of each node that does not depend on the forest or the process (FNV-1a, 64 bits).
    pub(crate) fn fingerprints(&self) -> Vec<u64> {
        let mut fingerprints: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let mut fingerprint = Fingerprint::default();
            let mut write = |bytes: &[u8]| fingerprint.write(bytes);
            for (step, below) in node.iter() {
                match step {
                    Step::Field(name) => write(name.as_bytes()),
                    Step::Item => write(b"[]"),
                    Step::Value => write(b"{}"),
                }
                let below = usize::try_from(*below).unwrap_or(usize::MAX);
                let below = fingerprints.get(below).copied().unwrap_or_default();
                write(b".");
                write(&below.to_le_bytes());
            }
            fingerprints.push(fingerprint.finish());
        }
        fingerprints
    }

    /// The memory of nodes and names. The index by node holds the same nodes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let edge = size_of::<(Step, NodeId)>();
        let nodes: usize = self.nodes.iter().map(|node| 16 + node.len() * edge).sum();
        let names: usize = self.names.iter().map(|name| 16 + name.len()).sum();
        let slots = self.nodes.capacity() * (size_of::<Node>() + size_of::<usize>())
            + self.ids.capacity() * (size_of::<(Node, NodeId)>() + 1)
            + self.names.len() * 2 * size_of::<Arc<str>>();
        nodes + names + slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(forest: &mut Forest, fields: &[(&str, NodeId)]) -> NodeId {
        let steps = fields
            .iter()
            .map(|(name, id)| (Step::field(name).unwrap(), *id));
        forest.insert(steps.collect()).unwrap()
    }

    #[test]
    fn equal_subtrees_are_one_node() {
        let mut forest = Forest::default();
        let leaf = steps(&mut forest, &[]);
        let one = steps(&mut forest, &[("a", leaf), ("b", leaf)]);
        let other = steps(&mut forest, &[("b", leaf), ("a", leaf)]);
        assert_eq!(one, other);
        let top = steps(&mut forest, &[("c", one), ("d", one)]);
        assert_eq!(forest.nodes().len(), 3);
        assert_eq!(forest.path_counts()[top as usize], 6);
        assert_eq!(forest.depth(top), 2);
    }

    #[test]
    fn a_union_has_the_paths_of_both() {
        let mut forest = Forest::default();
        let leaf = steps(&mut forest, &[]);
        let a = steps(&mut forest, &[("a", leaf)]);
        let b = steps(&mut forest, &[("b", leaf)]);
        let one = steps(&mut forest, &[("spec", a), ("status", leaf)]);
        let other = steps(&mut forest, &[("spec", b)]);
        let union = forest.union(one, other, &mut HashMap::new()).unwrap();
        let both = steps(&mut forest, &[("a", leaf), ("b", leaf)]);
        let expected = steps(&mut forest, &[("spec", both), ("status", leaf)]);
        assert_eq!(union, expected);
        let prints = forest.fingerprints();
        assert_ne!(prints[one as usize], prints[union as usize]);
    }
}
