//! Number formats by the names others give them.

use units::named;

named! {
    /// The format of a tensor's elements, as safetensors names it.
    pub enum Dtype {
        /// 64-bit float.
        F64 = "F64",
        /// 32-bit float.
        F32 = "F32",
        /// 16-bit float.
        F16 = "F16",
        /// Brain float.
        Bf16 = "BF16",
        /// 8-bit float, 4 bits of exponent.
        F8E4m3 = "F8_E4M3",
        /// 8-bit float, 5 bits of exponent.
        F8E5m2 = "F8_E5M2",
        /// 64-bit integer.
        I64 = "I64",
        /// 32-bit integer.
        I32 = "I32",
        /// 16-bit integer.
        I16 = "I16",
        /// 8-bit integer.
        I8 = "I8",
        /// Byte.
        U8 = "U8",
        /// Truth values, a byte each.
        Bool = "BOOL",
    }
}

/// Names in torch (torch/storage.py, `_dtype_to_storage_type_map`): of the dtype, and of the storage
/// class that `torch.save` writes; dtypes without a class are saved untyped.
const TORCH: [(Dtype, &str, Option<&str>); 12] = [
    (Dtype::F64, "float64", Some("DoubleStorage")),
    (Dtype::F32, "float32", Some("FloatStorage")),
    (Dtype::F16, "float16", Some("HalfStorage")),
    (Dtype::Bf16, "bfloat16", Some("BFloat16Storage")),
    (Dtype::F8E4m3, "float8_e4m3fn", None),
    (Dtype::F8E5m2, "float8_e5m2", None),
    (Dtype::I64, "int64", Some("LongStorage")),
    (Dtype::I32, "int32", Some("IntStorage")),
    (Dtype::I16, "int16", Some("ShortStorage")),
    (Dtype::I8, "int8", Some("CharStorage")),
    (Dtype::U8, "uint8", Some("ByteStorage")),
    (Dtype::Bool, "bool", Some("BoolStorage")),
];

impl Dtype {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }

    /// `float32` of `torch.float32`.
    pub fn torch(self) -> &'static str {
        TORCH.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// The class of a typed storage.
    pub fn storage(self) -> Option<&'static str> {
        TORCH.iter().find(|row| row.0 == self).and_then(|row| row.2)
    }

    /// The dtype torch calls by this name.
    pub fn from_torch(name: &str) -> Option<Dtype> {
        TORCH.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The dtype of a storage class.
    pub fn from_storage(class: &str) -> Option<Dtype> {
        TORCH.iter().find(|row| row.2 == Some(class)).map(|row| row.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_a_name_in_torch() {
        for (_, dtype) in Dtype::ALL {
            assert_eq!(Dtype::from_torch(dtype.torch()), Some(*dtype));
            assert!(dtype.storage().is_none_or(|class| Dtype::from_storage(class) == Some(*dtype)));
        }
    }
}
