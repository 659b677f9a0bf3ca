// A zip of text files, stored as they are. Fields: APPNOTE.TXT 6.3, sections 4.3.7, 4.3.12 and 4.3.16.

const TABLE = Array.from({ length: 256 }, (_, start) => {
  let value = start;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value >>> 0;
});

function crc32(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = TABLE[(value ^ byte) & 255] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

// Numbers as [bytes, value], little end first.
function fields(...pairs) {
  const out = [];
  for (const [width, value] of pairs)
    for (let at = 0; at < width; at += 1) out.push(Math.floor(value / 256 ** at) & 255);
  return Uint8Array.from(out);
}

// Names are UTF-8 (flag bit 11), times are the first day the format knows: equal launches make equal files.
const UTF8 = 1 << 11;
const DAY = (1 << 5) | 1;
const UNIX = 3;

// files: [{ path, contents, executable }]
export function zip(files) {
  const encoder = new TextEncoder();
  const parts = [];
  const directory = [];
  let offset = 0;
  for (const file of files) {
    const name = encoder.encode(file.path);
    const data = encoder.encode(file.contents);
    const shared = [
      [2, 20],
      [2, UTF8],
      [2, 0],
      [2, 0],
      [2, DAY],
      [4, crc32(data)],
      [4, data.length],
      [4, data.length],
      [2, name.length],
      [2, 0],
    ];
    const mode = 0o100000 | (file.executable ? 0o755 : 0o644);
    directory.push(
      fields([4, 0x02014b50], [2, (UNIX << 8) | 20], ...shared, [2, 0], [2, 0], [2, 0], [4, mode * 65536], [4, offset]),
      name,
    );
    const head = fields([4, 0x04034b50], ...shared);
    parts.push(head, name, data);
    offset += head.length + name.length + data.length;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = fields(
    [4, 0x06054b50],
    [2, 0],
    [2, 0],
    [2, files.length],
    [2, files.length],
    [4, size],
    [4, offset],
    [2, 0],
  );
  return [...parts, ...directory, end];
}
