// What may be on a disk after the power went: a model of the least that POSIX promises.
//
// fsync of a file makes its data and size durable, and nothing of its name; fsync of a folder makes
// the names in it durable, and nothing of what they name. Every change since then may be there or
// not, each for itself and in no order: a later write without the earlier one, the length without
// the data, half of a write, a rename without the file that it put in place. Only a single change
// of names (rename, exchange) happens wholly or not at all. Real file systems lose less.
//
// Not modelled: modes and times; renames between folders (refused); hard links; what was written to
// a mapping (of ours only SQLite's -shm, which is made anew by the first who opens the database); a
// disk that damages what was synced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/power_loss/disk_log.h"

namespace nsa {

struct DiskEvent {
  DiskOp op;
  uint64_t inode = 0;
  int64_t offset = 0;
  std::string path;  // relative to the folder; "" is the folder itself
  std::string data;
};

// The log of disk_recorder.cc about `folder`.
std::vector<DiskEvent> ReadDiskLog(const std::filesystem::path& log,
                                   const std::filesystem::path& folder);

// What lies below a folder: by relative path.
struct DiskEntry {
  enum Kind { kFile, kFolder, kLink } kind;
  std::string content;  // of a file; target of a link
  bool operator==(const DiskEntry&) const = default;
};
using DiskTree = std::map<std::string, DiskEntry>;
DiskTree ReadTree(const std::filesystem::path& folder);
void WriteTree(const DiskTree& tree, const std::filesystem::path& folder);

// Which syncs do their work; the others of a program might as well not be there.
enum class Honoured { kAll, kOfFiles, kOfFolders, kNone };

// What becomes of changes that were not synced.
struct Loss {
  enum Names { kNamesLost, kNamesThere, kNamesRandom } names;
  // Zeros: the size is the new one, but where the file has grown are zeros. Torn: half of the
  // changes, the next one in half. Last only: all but the last are lost. Random: one of these for
  // each file, or a random choice of its changes.
  enum Data { kLost, kThere, kZeros, kTorn, kLastOnly, kRandom } data;
};

// "names lost, data torn"
std::string ToString(Loss loss);

class Disk {
 public:
  // `inode` is the folder's.
  explicit Disk(uint64_t inode, Honoured honoured = Honoured::kAll);

  // The event outlives the disk.
  void Apply(const DiskEvent& event);

  DiskTree After(Loss loss, std::mt19937* random) const;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePtr>;
  // Names of one folder that change at once; null: gone.
  using NameChange = std::vector<std::pair<std::string, NodePtr>>;
  struct Node {
    DiskEntry::Kind kind;
    std::string durable;                     // content
    std::vector<const DiskEvent*> unsynced;  // kWrite, kTruncate
    Names names;                             // as the program sees them
    Names durable_names;
    std::vector<NameChange> unsynced_names;
  };

  NodePtr FolderOf(const std::string& path) const;
  void Rename(const std::string& path, NameChange change);
  void Sync(Node* node) const;
  static std::string ContentAfter(const Node& node, Loss::Data data, std::mt19937* random);
  static void AddTree(const Node& folder, const std::string& prefix, Loss loss,
                      std::mt19937* random, DiskTree* tree);

  const Honoured honoured_;
  const NodePtr root_;
  std::map<uint64_t, NodePtr> by_inode_;
};

}  // namespace nsa
