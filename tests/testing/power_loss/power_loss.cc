#include "tests/testing/power_loss/power_loss.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace nsa {
namespace {

namespace fs = std::filesystem;

void Must(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "power_loss: %s\n", what.c_str());
  std::abort();
}

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// The parent of "a/b/c" is "a/b", its name there is "c".
std::string ParentOf(const std::string& path) { return fs::path(path).parent_path(); }
std::string NameOf(const std::string& path) { return fs::path(path).filename(); }

void Change(const DiskEvent& event, size_t bytes, std::string* content) {
  const auto offset = static_cast<size_t>(event.offset);
  if (event.op == DiskOp::kTruncate) {
    content->resize(offset);
    return;
  }
  if (content->size() < offset + bytes) content->resize(offset + bytes);
  content->replace(offset, bytes, event.data, 0, bytes);
}

bool Coin(std::mt19937* random) { return (*random)() % 2 == 0; }

}  // namespace

std::vector<DiskEvent> ReadDiskLog(const fs::path& log, const fs::path& folder) {
  const std::string bytes = ReadAll(log);
  const std::string prefix = folder.string() + "/";
  const auto relative = [&prefix](const std::string& path) {
    Must(path.rfind(prefix, 0) == 0, path + " is elsewhere");
    return path.substr(prefix.size());
  };
  std::vector<DiskEvent> events;
  size_t at = 0;
  while (at < bytes.size()) {
    DiskRecord record = {};
    Must(bytes.size() - at >= sizeof(record), "half a record");
    bytes.copy(reinterpret_cast<char*>(&record), sizeof(record), at);
    at += sizeof(record);
    DiskEvent& event = events.emplace_back();
    event = {record.op, record.inode, record.offset, bytes.substr(at, record.path_bytes),
             bytes.substr(at + record.path_bytes, record.data_bytes)};
    at += record.path_bytes + record.data_bytes;
    if (!event.path.empty()) event.path = relative(event.path);
    if (event.op == DiskOp::kRename || event.op == DiskOp::kExchange) {
      event.data = relative(event.data);
    }
  }
  return events;
}

DiskTree ReadTree(const fs::path& folder) {
  DiskTree tree;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().lexically_relative(folder);
    if (entry.is_symlink()) {
      tree[path] = {DiskEntry::kLink, fs::read_symlink(entry.path())};
    } else if (entry.is_directory()) {
      tree[path] = {DiskEntry::kFolder, ""};
    } else {
      tree[path] = {DiskEntry::kFile, ReadAll(entry.path())};
    }
  }
  return tree;
}

void WriteTree(const DiskTree& tree, const fs::path& folder) {
  fs::create_directories(folder);
  for (const auto& [path, entry] : tree) {
    switch (entry.kind) {
      case DiskEntry::kFolder:
        fs::create_directory(folder / path);
        break;
      case DiskEntry::kLink:
        fs::create_symlink(entry.content, folder / path);
        break;
      case DiskEntry::kFile:
        Must((std::ofstream(folder / path, std::ios::binary) << entry.content << std::flush).good(),
             folder.string() + ": no room");
        break;
    }
  }
}

std::string ToString(Loss loss) {
  constexpr const char* kNames[] = {"lost", "there", "random"};
  constexpr const char* kData[] = {"lost", "there", "zeros", "torn", "last only", "random"};
  return std::string("names ") + kNames[loss.names] + ", data " + kData[loss.data];
}

Disk::Disk(uint64_t inode, Honoured honoured)
    : honoured_(honoured), root_(std::make_shared<Node>(Node{.kind = DiskEntry::kFolder})) {
  by_inode_[inode] = root_;
}

Disk::NodePtr Disk::FolderOf(const std::string& path) const {
  NodePtr folder = root_;
  for (const fs::path& name : fs::path(ParentOf(path))) {
    const auto found = folder->names.find(name.string());
    Must(found != folder->names.end(), path + ": its folder was never made");
    folder = found->second;
  }
  return folder;
}

// Changes names in the folder that contains `path`.
void Disk::Rename(const std::string& path, NameChange change) {
  Node& folder = *FolderOf(path);
  for (const auto& [name, node] : change) folder.names[name] = node;
  std::erase_if(folder.names, [](const auto& entry) { return entry.second == nullptr; });
  folder.unsynced_names.push_back(std::move(change));
}

void Disk::Sync(Node* node) const {
  if (node->kind == DiskEntry::kFolder) {
    if (honoured_ == Honoured::kOfFiles || honoured_ == Honoured::kNone) return;
    node->durable_names = node->names;
    node->unsynced_names.clear();
    return;
  }
  if (honoured_ == Honoured::kOfFolders || honoured_ == Honoured::kNone) return;
  for (const DiskEvent* change : node->unsynced)
    Change(*change, change->data.size(), &node->durable);
  node->unsynced.clear();
}

void Disk::Apply(const DiskEvent& event) {
  const std::string name = NameOf(event.path);
  const auto open = [&] {
    const auto found = by_inode_.find(event.inode);
    Must(found != by_inode_.end(), "a file that was never made is used");
    return found->second;
  };
  const auto named = [this](const std::string& path) {
    const Names& names = FolderOf(path)->names;
    const auto found = names.find(NameOf(path));
    Must(found != names.end(), path + ": not there");
    return found->second;
  };
  const auto make = [&](DiskEntry::Kind kind) {
    const NodePtr node = std::make_shared<Node>(Node{.kind = kind, .durable = event.data});
    by_inode_[event.inode] = node;
    Rename(event.path, {{name, node}});
  };
  switch (event.op) {
    case DiskOp::kCreate:
      return make(DiskEntry::kFile);
    case DiskOp::kMakeDir:
      return make(DiskEntry::kFolder);
    case DiskOp::kSymlink:
      return make(DiskEntry::kLink);
    case DiskOp::kWrite:
    case DiskOp::kTruncate:
      open()->unsynced.push_back(&event);
      return;
    case DiskOp::kSync:
      return Sync(open().get());
    case DiskOp::kRemove:
      return Rename(event.path, {{name, nullptr}});
    case DiskOp::kRename:
    case DiskOp::kExchange: {
      Must(ParentOf(event.path) == ParentOf(event.data), event.path + ": renamed to elsewhere");
      const NodePtr other = event.op == DiskOp::kExchange ? named(event.data) : nullptr;
      return Rename(event.path, {{NameOf(event.data), named(event.path)}, {name, other}});
    }
    case DiskOp::kSaid:
      return;
  }
}

std::string Disk::ContentAfter(const Node& node, Loss::Data data, std::mt19937* random) {
  constexpr int kFates = Loss::kRandom + 1;
  if (data == Loss::kRandom) data = static_cast<Loss::Data>((*random)() % kFates);
  std::string content = node.durable;
  const auto apply = [&](const auto& survives) {
    for (size_t i = 0; i < node.unsynced.size(); ++i) {
      if (survives(i)) Change(*node.unsynced[i], node.unsynced[i]->data.size(), &content);
    }
  };
  const size_t half = node.unsynced.size() / 2;
  switch (data) {
    case Loss::kLost:
      break;
    case Loss::kThere:
      apply([](size_t) { return true; });
      break;
    case Loss::kZeros: {
      apply([](size_t) { return true; });
      const size_t size = content.size();
      content = node.durable;
      content.resize(size);
      break;
    }
    case Loss::kTorn:
      apply([half](size_t i) { return i < half; });
      if (half < node.unsynced.size()) {
        Change(*node.unsynced[half], node.unsynced[half]->data.size() / 2, &content);
      }
      break;
    case Loss::kLastOnly:
      apply([&node](size_t i) { return i + 1 == node.unsynced.size(); });
      break;
    case Loss::kRandom:
      apply([random](size_t) { return Coin(random); });
      break;
  }
  return content;
}

void Disk::AddTree(const Node& folder, const std::string& prefix, Loss loss, std::mt19937* random,
                   DiskTree* tree) {
  Names names = folder.durable_names;
  for (const NameChange& change : folder.unsynced_names) {
    if (loss.names == Loss::kNamesLost) continue;
    if (loss.names == Loss::kNamesRandom && !Coin(random)) continue;
    for (const auto& [name, node] : change) names[name] = node;
  }
  for (const auto& [name, node] : names) {
    if (node == nullptr) continue;
    const std::string path = prefix + name;
    (*tree)[path] = {
        node->kind, node->kind == DiskEntry::kFolder ? "" : ContentAfter(*node, loss.data, random)};
    if (node->kind == DiskEntry::kFolder) AddTree(*node, path + "/", loss, random, tree);
  }
}

DiskTree Disk::After(Loss loss, std::mt19937* random) const {
  DiskTree tree;
  AddTree(*root_, "", loss, random, &tree);
  return tree;
}

}  // namespace nsa
