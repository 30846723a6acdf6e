#include "server/store/audit/audit_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/beneath.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// Texts of an entry come from callers.
constexpr size_t kLongestText = 256;
constexpr size_t kLongestLine = 8 << 10;

std::string Shown(const std::string& text) { return CleanLine(CutText(text, kLongestText)); }

std::string LineOf(const v1::AuditEntry& entry) {
  const nlohmann::ordered_json json = {
      {"sequence", entry.sequence()},   {"unix_nanos", entry.unix_nanos()},
      {"who", Shown(entry.who())},      {"from", Shown(entry.from())},
      {"what", Shown(entry.what())},    {"subject", Shown(entry.subject())},
      {"result", Shown(entry.result())}};
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

// Calls take(entry, offset of its line) for each entry from `offset` on whose sequence is above
// `above`, above those before it and at most `highest`, until it returns false. No file: none.
// Returns where the whole lines end.
template <typename Take>
int64_t ForEach(const std::filesystem::path& path, int64_t offset, int64_t above, int64_t highest,
                Take take) {
  const auto opened = OpenBeneath(path.parent_path(), path.filename(), O_RDONLY);
  if (!opened.ok()) return offset;
  // The open file, not what the name may lead to now.
  std::ifstream file(absl::StrCat("/proc/self/fd/", opened->get()), std::ios::binary);
  file.seekg(offset);
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    const auto bytes = static_cast<int64_t>(line.size()) + 1;
    offset += bytes;
    v1::AuditEntry entry;
    if (!Parse(line, &entry) || entry.sequence() <= above || entry.sequence() > highest) continue;
    above = entry.sequence();
    if (!take(entry, offset - bytes)) break;
  }
  return offset;
}

}  // namespace

void AuditFile::Index::Add(int64_t sequence, int64_t offset) {
  if (entries++ % kStride == 0) marks.push_back({.sequence = sequence, .offset = offset});
  last = sequence;
}

int64_t AuditFile::Index::Before(int64_t after) const {
  const auto later = std::ranges::upper_bound(marks, after, {}, &Mark::sequence);
  return later == marks.begin() ? 0 : std::prev(later)->offset;
}

AuditFile::Index AuditFile::Scan(const std::filesystem::path& path, int64_t above) {
  Index index;
  index.last = above;
  const auto take = [&](const v1::AuditEntry& entry, int64_t offset) {
    index.Add(entry.sequence(), offset);
    return true;
  };
  index.bytes = ForEach(path, 0, above, kLastSequence, take);
  return index;
}

absl::StatusOr<AuditFile> AuditFile::Open(std::filesystem::path file, int64_t file_bytes) {
  AuditFile opened(std::move(file), file_bytes);
  opened.older_ = Scan(opened.Older(), 0);
  opened.now_ = Scan(opened.file_, opened.older_.last);
  opened.last_ = opened.now_.last;
  NSA_RETURN_IF_ERROR(opened.OpenToWrite());
  return opened;
}

absl::Status AuditFile::OpenToWrite() {
  absl::StatusOr<Fd> opened =
      OpenBeneath(file_.parent_path(), file_.filename(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (!opened.ok()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "audit log: cannot be written: ", opened.status().message(), "; check who owns it"));
  }
  fd_ = *std::move(opened);
  if (ftruncate(fd_.get(), now_.bytes) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("audit log: ", file_.string(),
                                                  " cannot be written (", std::strerror(errno),
                                                  "); check who owns it"));
}

absl::Status AuditFile::Append(const v1::AuditEntry& entry) {
  if (!fd_.valid()) NSA_RETURN_IF_ERROR(OpenToWrite());
  const std::string line = LineOf(entry);
  const auto bytes = static_cast<int64_t>(line.size());
  if (now_.bytes + bytes > file_bytes_ && now_.bytes > 0) {
    fdatasync(fd_.get());
    if (rename(file_.c_str(), Older().c_str()) != 0) {
      return absl::ErrnoToStatus(errno, file_.string());
    }
    older_ = std::exchange(now_, {.marks = {}, .last = last_});
    fd_ = Fd();
    NSA_RETURN_IF_ERROR(OpenToWrite());
  }
  const ssize_t written = write(fd_.get(), line.data(), line.size());
  if (written == bytes) {
    now_.Add(entry.sequence(), now_.bytes);
    now_.bytes += bytes;
    last_ = entry.sequence();
    return absl::OkStatus();
  }
  const absl::Status failed = absl::ErrnoToStatus(written < 0 ? errno : ENOSPC, file_.string());
  if (ftruncate(fd_.get(), now_.bytes) != 0) spdlog::warn("audit log: a line is cut off");
  return failed;
}

void AuditFile::ReadSome(const std::filesystem::path& path, const Index& index, int64_t after,
                         size_t limit, std::vector<v1::AuditEntry>* entries) {
  if (index.last <= after || entries->size() >= limit) return;
  const auto take = [&](const v1::AuditEntry& entry, int64_t /*offset*/) {
    entries->push_back(entry);
    return entries->size() < limit;
  };
  ForEach(path, index.Before(after), after, index.last, take);
}

std::vector<v1::AuditEntry> AuditFile::Read(int64_t after, size_t limit) const {
  std::vector<v1::AuditEntry> entries;
  ReadSome(Older(), older_, after, limit, &entries);
  ReadSome(file_, now_, std::max(after, older_.last), limit, &entries);
  return entries;
}

}  // namespace nsa::server
