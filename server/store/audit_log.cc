#include "server/store/audit_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// Texts of an entry come from callers.
constexpr size_t kLongestText = 256;
constexpr size_t kLongestLine = 8 << 10;

std::string Shown(const std::string& text) { return CleanLine(text.substr(0, kLongestText)); }

std::string LineOf(const v1::AuditEntry& entry) {
  const nlohmann::ordered_json json = {
      {"sequence", entry.sequence()}, {"unix_nanos", entry.unix_nanos()},
      {"who", Shown(entry.who())},    {"from", Shown(entry.from())},
      {"what", entry.what()},         {"subject", Shown(entry.subject())},
      {"result", entry.result()}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// False for a line that is no entry.
bool Parse(const std::string& line, v1::AuditEntry* entry) {
  if (line.size() > kLongestLine) return false;
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto text = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : "";
  };
  const auto number = [&](const char* key) -> int64_t {
    const auto it = json.find(key);
    return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
  };
  entry->set_sequence(number("sequence"));
  entry->set_unix_nanos(number("unix_nanos"));
  entry->set_who(text("who"));
  entry->set_from(text("from"));
  entry->set_what(text("what"));
  entry->set_subject(text("subject"));
  entry->set_result(text("result"));
  return entry->sequence() > 0;
}

// Calls `take` for each entry of a file until it returns false. No file: none. Returns the length
// of the whole lines.
template <typename Take>
int64_t ForEach(const std::filesystem::path& path, Take take) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  int64_t whole = 0;
  while (std::getline(file, line) && !file.eof()) {
    whole += static_cast<int64_t>(line.size()) + 1;
    v1::AuditEntry entry;
    if (Parse(line, &entry) && !take(entry)) break;
  }
  return whole;
}

std::filesystem::path OlderOf(const std::filesystem::path& file) { return file.string() + ".1"; }

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::filesystem::path& state_dir,
                                                         const Clock& clock, int64_t file_bytes) {
  std::unique_ptr<AuditLog> log(new AuditLog(state_dir / "audit.log", clock, file_bytes));
  MutexLock lock(&log->mutex_);
  const auto note = [&](const v1::AuditEntry& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    log->sequence_ = entry.sequence();
    return true;
  };
  ForEach(OlderOf(log->file_), note);
  log->bytes_ = ForEach(log->file_, note);
  NSA_RETURN_IF_ERROR(log->OpenFile());
  return log;
}

absl::Status AuditLog::OpenFile() {
  fd_ = Fd(open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd_.valid() && ftruncate(fd_.get(), bytes_) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("audit log: ", file_.string(),
                                                  " cannot be written (", std::strerror(errno),
                                                  "); check who owns it"));
}

absl::Status AuditLog::Append(const v1::AuditEntry& entry) {
  if (!fd_.valid()) NSA_RETURN_IF_ERROR(OpenFile());
  const std::string line = LineOf(entry);
  if (bytes_ + static_cast<int64_t>(line.size()) > file_bytes_) {
    fdatasync(fd_.get());
    if (rename(file_.c_str(), OlderOf(file_).c_str()) != 0) {
      return absl::ErrnoToStatus(errno, file_.string());
    }
    bytes_ = 0;
    NSA_RETURN_IF_ERROR(OpenFile());
  }
  const ssize_t written = write(fd_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    bytes_ += written;
    return absl::OkStatus();
  }
  const absl::Status failed = absl::ErrnoToStatus(written < 0 ? errno : ENOSPC, file_.string());
  if (ftruncate(fd_.get(), bytes_) != 0) spdlog::warn("audit log: a line is cut off");
  return failed;
}

void AuditLog::Add(v1::AuditEntry entry) {
  MutexLock lock(&mutex_);
  entry.set_sequence(sequence_ + 1);
  entry.set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
  const absl::Status status = Append(entry);
  if (status.ok()) {
    ++sequence_;
  } else {
    spdlog::error("audit log: {}; not noted: {}", std::string(status.message()), LineOf(entry));
  }
}

absl::StatusOr<std::vector<v1::AuditEntry>> AuditLog::Read(int64_t after, size_t limit) const {
  MutexLock lock(&mutex_);
  std::vector<v1::AuditEntry> entries;
  const auto take = [&](const v1::AuditEntry& entry) {
    if (entry.sequence() > after) entries.push_back(entry);
    return entries.size() < limit;
  };
  ForEach(OlderOf(file_), take);
  if (entries.size() < limit) ForEach(file_, take);
  return entries;
}

int64_t AuditLog::last_sequence() const {
  MutexLock lock(&mutex_);
  return sequence_;
}

}  // namespace nsa::server
