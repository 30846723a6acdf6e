#include "server/store/node/node_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

constexpr char kCordonsFile[] = "cordons.pb";
constexpr int64_t kLargestFile = 8 << 20;  // twice what limits::kNodes machines need

absl::Status DamagedCordons(const std::filesystem::path& file, const std::string& why) {
  return absl::DataLossError(absl::StrCat(
      "cordons: ", file.string(), " is damaged (", why,
      "); put a copy back, or move it away and cordon the machines again (`nsactl node cordon`)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeStore>> NodeStore::Open(const std::filesystem::path& state_dir) {
  std::unique_ptr<NodeStore> store(new NodeStore(state_dir / kCordonsFile));
  std::error_code error;
  const auto size = std::filesystem::file_size(store->file_, error);
  if (!error && size > kLargestFile) {
    return DamagedCordons(store->file_, absl::StrCat(size, " bytes, at most ", kLargestFile));
  }
  const auto bytes = ReadWholeFile(store->file_);
  if (absl::IsNotFound(bytes.status())) return store;
  if (!bytes.ok()) return Annotate(bytes.status(), "cordons");
  MutexLock lock(&store->mutex_);
  if (const absl::Status status = Unseal(*bytes, &store->cordons_); !status.ok()) {
    return DamagedCordons(store->file_, std::string(status.message()));
  }
  return store;
}

Cordons NodeStore::All() const {
  MutexLock lock(&mutex_);
  return {cordons_.nodes().begin(), cordons_.nodes().end()};
}

KnownNodes NodeStore::Known() const {
  MutexLock lock(&mutex_);
  return {cordons_.known().begin(), cordons_.known().end()};
}

absl::Status NodeStore::SetKnown(const KnownNodes& known) {
  MutexLock lock(&mutex_);
  const auto& before = cordons_.known();
  const auto same = [&before](const auto& entry) {
    const auto stored = before.find(entry.first);
    return stored != before.end() && stored->second.boot_id() == entry.second.boot_id();
  };
  if (known.size() == before.size() && std::ranges::all_of(known, same)) {
    return absl::OkStatus();
  }
  v1::StoredCordons next = cordons_;
  next.clear_known();
  next.mutable_known()->insert(known.begin(), known.end());
  return Replace(std::move(next));
}

absl::Status NodeStore::Put(const std::string& node, const v1::NodeCordon& cordon) {
  MutexLock lock(&mutex_);
  v1::StoredCordons next = cordons_;
  (*next.mutable_nodes())[node] = cordon;
  if (static_cast<size_t>(next.nodes_size()) > limits::kNodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("node: ", cordons_.nodes_size(), " machines are cordoned (at most ",
                     limits::kNodes, "); uncordon those that are gone"));
  }
  return Replace(std::move(next));
}

absl::Status NodeStore::MoveDeadlines(absl::Duration step) {
  MutexLock lock(&mutex_);
  v1::StoredCordons next = cordons_;
  bool moved = false;
  for (auto& [name, cordon] : *next.mutable_nodes()) {
    if (cordon.deadline_unix_nanos() == 0) continue;
    cordon.set_deadline_unix_nanos(cordon.deadline_unix_nanos() + absl::ToInt64Nanoseconds(step));
    moved = true;
  }
  return moved ? Replace(std::move(next)) : absl::OkStatus();
}

absl::Status NodeStore::Remove(const std::string& node) {
  MutexLock lock(&mutex_);
  if (!cordons_.nodes().contains(node)) return absl::OkStatus();
  v1::StoredCordons next = cordons_;
  next.mutable_nodes()->erase(node);
  return Replace(std::move(next));
}

absl::Status NodeStore::Replace(v1::StoredCordons cordons) {
  NSA_RETURN_IF_ERROR(WriteFileAtomically(file_, Seal(cordons)));
  cordons_ = std::move(cordons);
  return absl::OkStatus();
}

}  // namespace nsa::server
