#include "worker/train/data/cache/cache_folder.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "common/base/log.h"
#include "worker/train/data/cache/entry_lock.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

// Something that is deleted as a whole.
struct Item {
  fs::file_time_type used;
  int64_t bytes;
  fs::path path;
  bool tokens;  // a KEY.tokens or KEY.partial; else a block
};

void AddTokens(const fs::path& folder, std::vector<Item>* items) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string ending = entry->path().extension();
    if (ending != ".tokens" && ending != ".partial") continue;
    // A partial folder that nobody writes is of no use to anybody: it goes first.
    std::error_code gone;
    fs::file_time_type used = fs::last_write_time(entry->path() / "manifest.json", gone);
    if (gone || ending == ".partial") used = fs::file_time_type::min();
    items->push_back({used, BytesIn(entry->path()), entry->path(), true});
  }
}

// Blocks, and files of them that a process left when it was killed.
void AddBlocks(const fs::path& folder, std::vector<Item>* items) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const auto bytes = static_cast<int64_t>(entry->file_size(gone));
    const bool block = entry->path().extension() == ".block" || entry->path().extension() == ".new";
    if (gone || !block || !entry->is_regular_file(gone)) continue;
    items->push_back({entry->last_write_time(gone), bytes, entry->path(), false});
  }
}

std::vector<Item> ItemsIn(const fs::path& folder) {
  std::vector<Item> items;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name == "tokens") {
      AddTokens(entry->path(), &items);
    } else if (name.size() == 2) {
      AddBlocks(entry->path(), &items);
    }
  }
  return items;
}

int64_t BytesOf(const std::vector<Item>& items) {
  int64_t bytes = 0;
  for (const Item& item : items) bytes += item.bytes;
  return bytes;
}

// Calls `act` while nobody maps or writes the item. False: somebody does, or `act` says so.
template <typename Act>
bool WhenUnused(const Item& item, const Act& act) {
  const TokenEntry entry((item.path.parent_path() / item.path.stem()).string());
  const auto lock = EntryLock::Take(entry.lock());
  if (!lock.ok()) return false;
  if (item.path == entry.partial()) return act(entry);
  const auto mapped = EntryLock::TakeExisting(entry.manifest());
  if (!mapped.ok() && !absl::IsNotFound(mapped.status())) return false;
  return act(entry);
}

bool DeleteTokens(const Item& item, const TokenEntry& entry) {
  std::error_code error;
  absl::Status deleted;
  if (item.path == entry.partial()) {
    fs::remove_all(item.path, error);
    if (error) deleted = absl::ErrnoToStatus(error.value(), item.path.string());
  } else {
    deleted = entry.Delete();
  }
  if (!deleted.ok()) {
    spdlog::warn("data: the cache cannot delete tokens: {}", std::string(deleted.message()));
    return false;
  }
  if (!fs::exists(entry.tokens(), error)) fs::remove(entry.lock(), error);
  return true;
}

bool Delete(const Item& item) {
  std::error_code error;
  if (!item.tokens) return fs::remove(item.path, error);
  return WhenUnused(item, [&](const TokenEntry& entry) { return DeleteTokens(item, entry); });
}

bool IsUsed(const Item& item) {
  return item.tokens && !WhenUnused(item, [](const TokenEntry& /*entry*/) { return true; });
}

int64_t UsedBytes(const std::vector<Item>& items) {
  int64_t bytes = 0;
  for (const Item& item : items) bytes += IsUsed(item) ? item.bytes : 0;
  return bytes;
}

// Bytes that the folder may have when it has `now`.
int64_t Allowed(const fs::path& folder, int64_t most_bytes, int64_t least_free, int64_t now) {
  if (least_free <= 0) return most_bytes;
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) return most_bytes;
  const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  return std::min(most_bytes, now + free - least_free);
}

}  // namespace

int64_t BytesIn(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const auto size = static_cast<int64_t>(entry->file_size(gone));
    if (!gone) bytes += size;
  }
  return bytes;
}

absl::Status TokenEntry::Delete() const {
  std::error_code error;
  fs::remove_all(partial(), error);
  if (!error && fs::exists(tokens(), error)) fs::rename(tokens(), partial(), error);
  if (!error) fs::remove_all(partial(), error);
  return error ? absl::ErrnoToStatus(error.value(), tokens().string()) : absl::OkStatus();
}

int64_t CacheFolder::MakeRoom(int64_t wanted) const {
  std::vector<Item> items = ItemsIn(folder_);
  int64_t total = BytesOf(items);
  const int64_t allowed = Allowed(folder_, most_bytes_, least_free_bytes_, total);
  const auto room = [&] { return std::max<int64_t>(allowed - total, 0); };
  // Nothing is deleted in vain.
  if (wanted <= room() || wanted > allowed - UsedBytes(items)) return room();
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.used < b.used; });
  for (const Item& item : items) {
    if (wanted <= room()) break;
    if (Delete(item)) total -= item.bytes;
  }
  return room();
}

int64_t CacheFolder::PossibleRoom() const {
  const std::vector<Item> items = ItemsIn(folder_);
  const int64_t allowed = Allowed(folder_, most_bytes_, least_free_bytes_, BytesOf(items));
  return std::max<int64_t>(allowed - UsedBytes(items), 0);
}

}  // namespace nsa::train
