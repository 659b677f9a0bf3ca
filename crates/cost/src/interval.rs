//! How far a step's time is to be trusted.

mod class;

pub use class::{Class, DeviceClass, EngineClass, FormatClass, ModelClass, Scale};
