//! Pickles as data. A pickle is a program that may call anything; this reader knows the few operations
//! that torch's metadata and tensors consist of, builds a description of what would be called, and
//! refuses every operation and every global it was not told of, by name. The description is an arena:
//! what a pickle shares is shared here, and nothing is expanded.
//!
//! Operations: Lib/pickle.py and Lib/pickletools.py of CPython 3.12.

mod write;

pub use write::{Memo, Writer};

use diag::{Blame, Finding};
use std::collections::HashMap;

/// Index of a node.
pub type Id = usize;

/// What a pickle says.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer of up to eight bytes.
    Int(i64),
    /// A larger one that is no more than eight bytes without its sign: torch's snapshots say so that a frame has no line.
    Unsigned(u64),
    /// A float.
    Float(f64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A tuple.
    Tuple(Vec<Id>),
    /// A list.
    List(Vec<Id>),
    /// A dict, in order.
    Dict(Vec<(Id, Id)>),
    /// A class or function by module and name.
    Global(String, String),
    /// What a class or function would make of arguments, and the state it would then be given.
    Made {
        /// The class or function.
        of: Id,
        /// A tuple.
        args: Id,
        /// What `BUILD` hands over.
        state: Option<Id>,
    },
    /// A persistent id.
    Persistent(Id),
}

/// A pickle that was read.
#[derive(Debug)]
pub struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

/// Refuses a pickle.
pub fn refuse(object: &str, message: impl Into<String>) -> Finding {
    let finding = Finding::error("checkpoint/pickle", Blame::Environment, object, message);
    finding.hint("nothing in a pickle is run here: only what torch's own checkpoints consist of is read")
}

impl Pickle {
    /// Reads a pickle. `allowed` says which globals may be named; `object` is what findings call it.
    pub fn read(bytes: &[u8], object: &str, allowed: &dyn Fn(&str, &str) -> bool) -> Result<Pickle, Finding> {
        let mut machine = Machine {
            bytes,
            at: 0,
            object,
            allowed,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        let root = machine.run()?;
        Ok(Pickle { nodes: machine.nodes, root })
    }

    /// What the pickle is of.
    pub fn root(&self) -> Id {
        self.root
    }

    /// A node.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    /// An integer.
    pub fn int(&self, id: Id) -> Option<i64> {
        if let Node::Int(n) = self.node(id) { Some(*n) } else { None }
    }

    /// A text.
    pub fn text(&self, id: Id) -> Option<&str> {
        if let Node::Text(text) = self.node(id) { Some(text) } else { None }
    }

    /// Items of a tuple or list.
    pub fn items(&self, id: Id) -> Option<&[Id]> {
        if let Node::Tuple(items) | Node::List(items) = self.node(id) { Some(items) } else { None }
    }

    /// Pairs of a dict.
    pub fn pairs(&self, id: Id) -> Option<&[(Id, Id)]> {
        if let Node::Dict(pairs) = self.node(id) { Some(pairs) } else { None }
    }

    /// The value of a text key of a dict; the last one counts, as in Python.
    pub fn get(&self, id: Id, key: &str) -> Option<Id> {
        self.pairs(id)?.iter().rev().find(|(k, _)| self.text(*k) == Some(key)).map(|(_, v)| *v)
    }

    /// A global as `module.name`.
    pub fn global(&self, id: Id) -> Option<String> {
        if let Node::Global(module, name) = self.node(id) { Some(format!("{module}.{name}")) } else { None }
    }

    /// What would be made: the global, its arguments, and its state.
    pub fn made(&self, id: Id) -> Option<(String, &[Id], Option<Id>)> {
        let Node::Made { of, args, state } = self.node(id) else { return None };
        Some((self.global(*of)?, self.items(*args)?, *state))
    }
}

struct Machine<'p> {
    bytes: &'p [u8],
    at: usize,
    object: &'p str,
    allowed: &'p dyn Fn(&str, &str) -> bool,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl Machine<'_> {
    fn no<T>(&self, message: impl std::fmt::Display) -> Result<T, Finding> {
        Err(refuse(self.object, format!("`{}` {message} (byte {})", self.object, self.at)))
    }

    fn take(&mut self, len: u64) -> Result<&[u8], Finding> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return self.no(format_args!("ends in the middle of a pickle: {len} bytes are needed and {left} are left"));
        }
        let taken = &self.bytes[self.at..self.at + len as usize];
        self.at += len as usize;
        Ok(taken)
    }

    fn number(&mut self, len: u64) -> Result<u64, Finding> {
        Ok(self.take(len)?.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
    }

    fn push(&mut self, node: Node) -> Result<(), Finding> {
        self.nodes.push(node);
        self.stack.push(self.nodes.len() - 1);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, Finding> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return self.no("takes from an empty stack");
        }
        Ok(self.stack.pop().unwrap_or(0))
    }

    fn popn(&mut self, n: usize) -> Result<Vec<Id>, Finding> {
        let mut items = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        Ok(items)
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, Finding> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => self.no("has no mark to go back to"),
        }
    }

    fn top(&mut self) -> Result<Id, Finding> {
        let id = self.pop()?;
        self.stack.push(id);
        Ok(id)
    }

    fn text(&mut self, len: u64) -> Result<(), Finding> {
        let text = std::str::from_utf8(self.take(len)?).map(str::to_string);
        match text {
            Ok(text) => self.push(Node::Text(text)),
            Err(_) => self.no("holds a text that is not UTF-8"),
        }
    }

    fn line(&mut self) -> Result<String, Finding> {
        let Some(len) = self.bytes[self.at..].iter().take(1024).position(|b| *b == b'\n') else {
            return self.no("has a name without an end");
        };
        let line = String::from_utf8_lossy(self.take(len as u64)?).into_owned();
        self.at += 1;
        Ok(line)
    }

    fn global(&mut self, module: String, name: String) -> Result<(), Finding> {
        if !(self.allowed)(&module, &name) {
            let called = diag::quote::bytes(format!("{module}.{name}").as_bytes(), 120);
            return self.no(format_args!("names `{called}`, which is not part of a tensor or of torch's metadata"));
        }
        self.push(Node::Global(module, name))
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), Finding> {
        let list = self.top()?;
        match &mut self.nodes[list] {
            Node::List(all) => all.extend(items),
            _ => return self.no("appends to what is no list"),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Id]) -> Result<(), Finding> {
        let dict = self.top()?;
        if !items.len().is_multiple_of(2) {
            return self.no("sets a key without a value");
        }
        match &mut self.nodes[dict] {
            Node::Dict(all) => all.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1]))),
            _ => return self.no("sets a key of what is no dict"),
        }
        Ok(())
    }

    fn make(&mut self) -> Result<(), Finding> {
        let args = self.pop()?;
        let of = self.pop()?;
        match (&self.nodes[of], &self.nodes[args]) {
            (Node::Global(..), Node::Tuple(_)) => self.push(Node::Made { of, args, state: None }),
            _ => self.no("calls what is no global, or without a tuple"),
        }
    }

    fn build(&mut self) -> Result<(), Finding> {
        let given = self.pop()?;
        let made = self.top()?;
        match &mut self.nodes[made] {
            Node::Made { state: state @ None, .. } => *state = Some(given),
            _ => return self.no("gives a state to what takes none"),
        }
        Ok(())
    }

    fn memoize(&mut self, key: u32) -> Result<(), Finding> {
        let id = self.top()?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), Finding> {
        match self.memo.get(&key) {
            Some(id) => {
                self.stack.push(*id);
                Ok(())
            }
            None => self.no(format_args!("recalls memo {key}, which was never set")),
        }
    }

    fn run(&mut self) -> Result<Id, Finding> {
        loop {
            let op = self.take(1)?[0];
            if op == b'.' {
                let root = self.pop()?;
                return if self.stack.is_empty() { Ok(root) } else { self.no("leaves values behind") };
            }
            self.step(op)?;
        }
    }

    fn step(&mut self, op: u8) -> Result<(), Finding> {
        match op {
            0x80 => match self.number(1)? {
                2..=5 => Ok(()),
                n => self.no(format_args!("has protocol {n}, and 2 to 5 are read")),
            },
            0x95 => self.number(8).map(|_| ()),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'J' => {
                let n = self.number(4)? as u32 as i32;
                self.push(Node::Int(n.into()))
            }
            b'K' => {
                let n = self.number(1)?;
                self.push(Node::Int(n as i64))
            }
            b'M' => {
                let n = self.number(2)?;
                self.push(Node::Int(n as i64))
            }
            0x8a => self.long(),
            b'G' => {
                let bits = self.take(8)?.iter().fold(0, |n: u64, b| n << 8 | u64::from(*b));
                self.push(Node::Float(f64::from_bits(bits)))
            }
            b'X' => {
                let len = self.number(4)?;
                self.text(len)
            }
            0x8c => {
                let len = self.number(1)?;
                self.text(len)
            }
            0x8d => {
                let len = self.number(8)?;
                self.text(len)
            }
            b'C' | b'B' => {
                let len = self.number(if op == b'C' { 1 } else { 4 })?;
                let bytes = self.take(len)?.to_vec();
                self.push(Node::Bytes(bytes))
            }
            _ => self.gather(op),
        }
    }

    /// An integer, two's complement.
    fn long(&mut self) -> Result<(), Finding> {
        let len = self.number(1)?;
        if len == 9 {
            let n = self.number(8)?;
            return match self.number(1)? {
                0 if n > i64::MAX as u64 => self.push(Node::Unsigned(n)),
                _ => self.no(format_args!("holds an integer of {len} bytes")),
            };
        }
        if len > 8 {
            return self.no(format_args!("holds an integer of {len} bytes"));
        }
        let n = self.number(len)?;
        let unused = 64 - 8 * len as u32;
        self.push(Node::Int(if len == 0 { 0 } else { (n << unused) as i64 >> unused }))
    }

    /// Operations on what is on the stack.
    fn gather(&mut self, op: u8) -> Result<(), Finding> {
        match op {
            b')' => self.push(Node::Tuple(Vec::new())),
            0x85..=0x87 => {
                let items = self.popn(usize::from(op - 0x84))?;
                self.push(Node::Tuple(items))
            }
            b't' => {
                let items = self.since_mark()?;
                self.push(Node::Tuple(items))
            }
            b']' => self.push(Node::List(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(items)
            }
            b's' => {
                let pair = self.popn(2)?;
                self.set(&pair)
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set(&items)
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)
            }
            0x93 => {
                let pair = self.popn(2)?;
                match (&self.nodes[pair[0]], &self.nodes[pair[1]]) {
                    (Node::Text(module), Node::Text(name)) => {
                        let (module, name) = (module.clone(), name.clone());
                        self.global(module, name)
                    }
                    _ => self.no("names a global by what is no text"),
                }
            }
            b'R' | 0x81 => self.make(),
            b'b' => self.build(),
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id))
            }
            b'q' | b'r' => {
                let key = self.number(if op == b'q' { 1 } else { 4 })? as u32;
                self.memoize(key)
            }
            0x94 => {
                let key = self.memo.len() as u32;
                self.memoize(key)
            }
            b'h' | b'j' => {
                let key = self.number(if op == b'h' { 1 } else { 4 })? as u32;
                self.recall(key)
            }
            _ => {
                self.at -= 1;
                self.no(format_args!("has operation 0x{op:02x}, which no checkpoint of torch uses"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Pickle, Finding> {
        Pickle::read(bytes, "test", &|module, name| (module, name) == ("torch", "Size"))
    }

    /// `pickle.dumps(value, 4)` of CPython 3.12.
    #[test]
    fn values_are_read() {
        // {"a": (1, -2, 2**40), "b": [None, True, 1.5], "c": b"x"}
        let bytes = b"\x80\x04\x955\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94K\x01J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01\x87\x94\x8c\x01b\x94]\x94(N\x88G?\xf8\x00\x00\x00\x00\x00\x00e\x8c\x01c\x94C\x01x\x94u.";
        let pickle = read(bytes).unwrap();
        let a = pickle.items(pickle.get(pickle.root(), "a").unwrap()).unwrap();
        assert_eq!(a.iter().map(|id| pickle.int(*id).unwrap()).collect::<Vec<_>>(), [1, -2, 1 << 40]);
        let b = pickle.items(pickle.get(pickle.root(), "b").unwrap()).unwrap();
        assert_eq!(
            (pickle.node(b[0]), pickle.node(b[1]), pickle.node(b[2])),
            (&Node::None, &Node::Bool(true), &Node::Float(1.5))
        );
        assert_eq!(pickle.node(pickle.get(pickle.root(), "c").unwrap()), &Node::Bytes(b"x".to_vec()));
    }

    /// `pickle.dumps([2**64 - 1, 2**63], 4)` and `2**64` of CPython 3.12; torch writes the first for a frame without a line.
    #[test]
    fn an_unsigned_integer_of_eight_bytes_is_read_and_none_larger() {
        let bytes =
            b"\x80\x04]\x94(\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00e.";
        let pickle = read(bytes).unwrap();
        let items = pickle.items(pickle.root()).unwrap();
        assert_eq!(pickle.node(items[0]), &Node::Unsigned(u64::MAX));
        assert_eq!((pickle.node(items[1]), pickle.int(items[1])), (&Node::Unsigned(1 << 63), None));
        let larger = b"\x80\x04\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.";
        assert!(read(larger).unwrap_err().message.contains("an integer of 9 bytes"));
    }

    #[test]
    fn what_would_run_is_refused_by_name() {
        for (bytes, words) in [
            (&b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R."[..], "`os.system`"),
            (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", "`builtins.eval`"),
            (b"\x80\x02\x82\x01.", "operation 0x82"),
            (b"\x80\x02ios\nsystem\n.", "operation 0x69"),
            (b"\x80\x02X\xff\xff\xff\xff", "ends in the middle"),
            (b"\x80\x07N.", "protocol 7"),
            (b"\x80\x02t.", "no mark"),
            (b"\x80\x02R.", "empty stack"),
            (b"\x80\x02h\x05.", "memo 5"),
            (b"\x80\x02NN.", "leaves values"),
            (b"\x80\x02]N}Nb.", "takes none"),
        ] {
            let finding = read(bytes).unwrap_err();
            assert_eq!(finding.rule, "checkpoint/pickle");
            assert!(finding.message.contains(words), "{} lacks {words}", finding.message);
        }
    }
}
