#include "server/notice/progress.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "nsa/v1/store.pb.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr char kFileName[] = "notices.pb";
constexpr int64_t kMostBytes = 64 << 10;

absl::Status Damaged(const fs::path& path, const std::string& why) {
  return absl::DataLossError(
      absl::StrCat("notices: ", path.string(), " is damaged (", why,
                   "); move it away: every notice then begins with the next event"));
}

absl::StatusOr<v1::StoredNotices> ReadProgress(const fs::path& path) {
  v1::StoredNotices stored;
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return stored;
  if (info.st_size > kMostBytes) {
    return Damaged(path, absl::StrCat(info.st_size, " bytes, ", kMostBytes));
  }
  const auto bytes = ReadWholeFile(path);
  if (!bytes.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("notices: ", bytes.status().message(), "; check who owns it"));
  }
  if (const absl::Status status = Unseal(*bytes, &stored); !status.ok()) {
    return Damaged(path, std::string(status.message()));
  }
  return stored;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NoticeProgress>> NoticeProgress::Open(
    const fs::path& state_dir, const std::vector<std::string>& names, int64_t last_event,
    const Clock& clock) {
  const fs::path path = state_dir / kFileName;
  NSA_ASSIGN_OR_RETURN(const v1::StoredNotices stored, ReadProgress(path));
  std::map<std::string, int64_t> before;
  for (const v1::StoredNotice& notice : stored.notices()) {
    before[notice.name()] = notice.done_sequence();
  }
  std::unique_ptr<NoticeProgress> progress(new NoticeProgress(path, clock));
  const MutexLock lock(&progress->mutex_);
  for (const std::string& name : names) {
    const auto known = before.find(name);
    progress->done_[name] =
        known == before.end() ? last_event : std::clamp<int64_t>(known->second, 0, last_event);
  }
  if (progress->done_ != before) NSA_RETURN_IF_ERROR(progress->Write());
  return progress;
}

NoticeProgress::~NoticeProgress() {
  const MutexLock lock(&mutex_);
  if (dirty_) Write().IgnoreError();
}

int64_t NoticeProgress::Done(const std::string& name) const {
  const MutexLock lock(&mutex_);
  const auto found = done_.find(name);
  return found == done_.end() ? 0 : found->second;
}

absl::Status NoticeProgress::Set(const std::string& name, int64_t sequence) {
  const MutexLock lock(&mutex_);
  done_[name] = sequence;
  return Write();
}

absl::Status NoticeProgress::Skip(const std::string& name, int64_t sequence) {
  const MutexLock lock(&mutex_);
  done_[name] = sequence;
  dirty_ = true;
  return clock_.Monotonic() - written_ < kSkipsEvery ? absl::OkStatus() : Write();
}

absl::Status NoticeProgress::Write() {
  dirty_ = true;
  written_ = clock_.Monotonic();
  v1::StoredNotices stored;
  for (const auto& [name, sequence] : done_) {
    v1::StoredNotice* notice = stored.add_notices();
    notice->set_name(name);
    notice->set_done_sequence(sequence);
  }
  NSA_RETURN_IF_ERROR(WriteFileAtomically(file_, Seal(stored)));
  dirty_ = false;
  return absl::OkStatus();
}

}  // namespace nsa::server
