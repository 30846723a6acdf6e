// The log that disk_recorder.cc, preloaded into a program, writes of what the program does below
// one folder, in order: how the recorder and the model of power loss (power_loss.h) understand each
// other.
#pragma once

#include <cstdint>

namespace nsa {

enum class DiskOp : uint32_t {
  kCreate,    // an empty file: path
  kMakeDir,   // path
  kSymlink,   // path; data: target
  kWrite,     // inode, offset, data
  kTruncate,  // inode, offset: the new size
  kRename,    // path; data: its new name, which loses what it was
  kExchange,  // path and data: two names
  kRemove,    // path: unlink, rmdir
  kSync,      // inode: fsync, fdatasync
  kSaid,      // data: what the program wrote to standard output (with write, not with stdio)
};

// Followed by the path and the data. Files are known by inode once they are open.
struct DiskRecord {
  DiskOp op;
  uint32_t path_bytes;
  uint64_t data_bytes;
  uint64_t inode;
  int64_t offset;
};

}  // namespace nsa
