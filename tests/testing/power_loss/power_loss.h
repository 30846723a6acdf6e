// What may be on a disk after a power loss: a model of the least that POSIX guarantees.
//
// fsync of a file makes its data and size durable, but not its name. fsync of a folder makes the
// names in it durable, but not the content of what they name. Every change after that may be on the
// disk or not, independently and in any order: a later write without an earlier one, the length
// without the data, half of a write, a rename without the data of the renamed file. Only a single
// change of names (rename, exchange) happens completely or not at all. Real file systems lose less.
//
// Not modelled: modes and times; renames between folders (refused); hard links; writes to a mapping
// (in this project only SQLite's -shm file, which the first process that opens the database creates
// again); a disk that damages synced data.
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

// Reads the log that disk_recorder.cc wrote about `folder`.
std::vector<DiskEvent> ReadDiskLog(const std::filesystem::path& log,
                                   const std::filesystem::path& folder);

// A file, folder or link below a folder; DiskTree maps relative paths to entries.
struct DiskEntry {
  enum Kind { kFile, kFolder, kLink } kind;
  std::string content;  // of a file; target of a link
  bool operator==(const DiskEntry&) const = default;
};
using DiskTree = std::map<std::string, DiskEntry>;
DiskTree ReadTree(const std::filesystem::path& folder);
void WriteTree(const DiskTree& tree, const std::filesystem::path& folder);

// Which syncs take effect; the model ignores the others.
enum class Honoured { kAll, kOfFiles, kOfFolders, kNone };

// What happens to changes that were not synced.
struct Loss {
  enum Names { kNamesLost, kNamesThere, kNamesRandom } names;
  // Zeros: the file has its new size, but the part by which it has grown is zeros. Torn: the first
  // half of the changes, then half of the next one. Last only: all but the last are lost. Random:
  // one of these for each file, or a random selection of its changes.
  enum Data { kLost, kThere, kZeros, kTorn, kLastOnly, kRandom } data;
};

// "names lost, data torn"
std::string ToString(Loss loss);

class Disk {
 public:
  // `inode`: the folder's inode number.
  explicit Disk(uint64_t inode, Honoured honoured = Honoured::kAll);

  // The event must outlive the disk.
  void Apply(const DiskEvent& event);

  DiskTree After(Loss loss, std::mt19937* random) const;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePtr>;
  // Names of one folder that change together; null: the name is removed.
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
