//! Writes pickles of protocol 2, which every torch reads.

/// A pickle being written. Values are pushed in the order in which Python's stack takes them.
pub struct Writer {
    out: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer { out: vec![0x80, 2] }
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
