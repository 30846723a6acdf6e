// The format of the log that disk_recorder.cc, preloaded into a program, writes: what the program
// does below one folder, in order. The model of power loss (power_loss.h) reads it.
#pragma once

#include <cstdint>

namespace nsa {

enum class DiskOp : uint32_t {
  kCreate,    // an empty file: path
  kMakeDir,   // path
  kSymlink,   // path; data: target
  kWrite,     // inode, offset, data
  kTruncate,  // inode, offset: the new size
  kRename,    // path; data: the new name, whose previous file is replaced
  kExchange,  // path and data: the two names
  kRemove,    // path: unlink, rmdir
  kSync,      // inode: fsync, fdatasync
  kSaid,      // data: what the program wrote to standard output (with write, not with stdio)
};

// In the log, the path and the data follow each record. Open files are identified by inode.
struct DiskRecord {
  DiskOp op;
  uint32_t path_bytes;
  uint64_t data_bytes;
  uint64_t inode;
  int64_t offset;
};

}  // namespace nsa
