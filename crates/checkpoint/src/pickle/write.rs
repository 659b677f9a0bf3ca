//! Writes pickles of protocol 2, which every torch reads.

/// A pickle being written. Values are pushed in the order in which Python's stack takes them.
pub struct Writer {
    out: Vec<u8>,
    remembered: u32,
}

/// A value that was remembered.
#[derive(Clone, Copy, Debug)]
pub struct Memo(u32);

/// Items of a list that are appended at once, as Python's own writer does; readers in other languages take them
/// as arguments of a call, of which there may be only so many.
const BATCH: usize = 1000;

impl Default for Writer {
    fn default() -> Writer {
        Writer { out: vec![0x80, 2], remembered: 0 }
    }
}

impl Writer {
    /// The whole pickle.
    pub fn finish(mut self) -> Vec<u8> {
        self.out.push(b'.');
        self.out
    }

    /// A bare operation.
    pub fn op(&mut self, op: u8) {
        self.out.push(op);
    }

    /// `None`.
    pub fn none(&mut self) {
        self.op(b'N');
    }

    /// A truth value.
    pub fn bool(&mut self, value: bool) {
        self.op(if value { 0x88 } else { 0x89 });
    }

    /// An integer below 2^63.
    pub fn int(&mut self, value: u64) {
        if let Ok(byte) = u8::try_from(value) {
            self.out.extend([b'K', byte]);
        } else if let Ok(number) = i32::try_from(value) {
            self.op(b'J');
            self.out.extend(number.to_le_bytes());
        } else {
            self.out.extend([0x8a, 8]);
            self.out.extend(value.to_le_bytes());
        }
    }

    /// A text.
    pub fn text(&mut self, value: &str) {
        self.op(b'X');
        self.out.extend((value.len() as u32).to_le_bytes());
        self.out.extend(value.as_bytes());
    }

    /// A class or function.
    pub fn global(&mut self, module: &str, name: &str) {
        self.out.extend(format!("c{module}\n{name}\n").into_bytes());
    }

    /// A tuple of what `items` pushes.
    pub fn tuple(&mut self, items: impl FnOnce(&mut Writer)) {
        self.op(b'(');
        items(self);
        self.op(b't');
    }

    /// A list.
    pub fn list(&mut self, items: impl FnOnce(&mut Writer)) {
        self.out.extend(b"](");
        items(self);
        self.op(b'e');
    }

    /// A list of what `each` pushes for every item.
    pub fn list_of<T>(&mut self, items: impl IntoIterator<Item = T>, mut each: impl FnMut(&mut Writer, T)) {
        self.out.extend(b"](");
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 && at.is_multiple_of(BATCH) {
                self.out.extend(b"e(");
            }
            each(self, item);
        }
        self.op(b'e');
    }

    /// Remembers the value pushed last, so that it can be pushed again without being written again.
    pub fn remember(&mut self) -> Memo {
        let memo = Memo(self.remembered);
        self.remembered += 1;
        match u8::try_from(memo.0) {
            Ok(byte) => self.out.extend([b'q', byte]),
            Err(_) => {
                self.op(b'r');
                self.out.extend(memo.0.to_le_bytes());
            }
        }
        memo
    }

    /// A value that was remembered.
    pub fn recall(&mut self, memo: Memo) {
        match u8::try_from(memo.0) {
            Ok(byte) => self.out.extend([b'h', byte]),
            Err(_) => {
                self.op(b'j');
                self.out.extend(memo.0.to_le_bytes());
            }
        }
    }

    /// A dict: `items` pushes keys and values in turn.
    pub fn dict(&mut self, items: impl FnOnce(&mut Writer)) {
        self.out.extend(b"}(");
        items(self);
        self.op(b'u');
    }

    /// A call of a global.
    pub fn call(&mut self, module: &str, name: &str, args: impl FnOnce(&mut Writer)) {
        self.global(module, name);
        self.tuple(args);
        self.op(b'R');
    }

    /// An instance of a class, made without arguments and given a state.
    pub fn object(&mut self, module: &str, name: &str, state: impl FnOnce(&mut Writer)) {
        self.global(module, name);
        self.out.extend([b')', 0x81]);
        state(self);
        self.op(b'b');
    }
}
