//! Enums whose variants are words that people type or read.

/// Declares an enum with the word each variant is written as, and `ALL` and `name` over it.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant,)+ }

        impl $name {
            /// Every variant with its word.
            pub const ALL: &'static [(&'static str, $name)] = &[$(($word, $name::$variant),)+];

            /// The word it is written as.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }

            /// The variant a word stands for.
            pub fn from_name(word: &str) -> Option<$name> {
                Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, variant)| *variant)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
