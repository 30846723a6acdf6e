#include "server/store/audit/audit_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kCountsFor = absl::Minutes(1);
constexpr char kOthers[] = "others";

// The address without its port, which is another one for each connection.
std::string SourceOf(const std::string& from) {
  const bool has_port = from.rfind("ipv4:", 0) == 0 || from.rfind("ipv6:", 0) == 0;
  return has_port ? from.substr(0, from.rfind(':')) : from;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::filesystem::path& state_dir,
                                                         const Clock& clock, int64_t file_bytes) {
  NSA_ASSIGN_OR_RETURN(AuditFile known, AuditFile::Open(state_dir / "audit.log", file_bytes));
  NSA_ASSIGN_OR_RETURN(AuditFile refused, AuditFile::Open(state_dir / "audit-refused.log",
                                                          std::min(file_bytes, kRefusedFileBytes)));
  return std::unique_ptr<AuditLog>(new AuditLog(clock, std::move(known), std::move(refused)));
}

AuditLog::~AuditLog() {
  MutexLock lock(&mutex_);
  WriteCounts(/*all=*/true);
}

void AuditLog::Add(v1::AuditEntry entry) {
  MutexLock lock(&mutex_);
  WriteCounts(/*all=*/false);
  if (entry.who().empty() && entry.result() != "OK") {
    Refuse(std::move(entry));
  } else {
    Append(std::move(entry), &known_);
  }
}

void AuditLog::Append(v1::AuditEntry entry, AuditFile* to) const {
  entry.set_sequence(sequence_ + 1);
  entry.set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
  const absl::Status status = to->Append(entry);
  if (status.ok()) {
    ++sequence_;
  } else {
    spdlog::error("audit log: {}; not noted: {} of {}: {}", std::string(status.message()),
                  entry.what(), entry.who(), entry.result());
  }
}

void AuditLog::Refuse(v1::AuditEntry entry) {
  entry.set_from(SourceOf(entry.from()));
  std::string key = absl::StrCat(entry.from(), "\n", entry.what(), "\n", entry.result());
  if (!counts_.contains(key) && counts_.size() >= kSources) {
    key = kOthers;
    entry.set_from(kOthers);
    entry.set_what("calls");
  }
  const auto [counted, first] = counts_.try_emplace(key);
  if (!first) {
    ++counted->second.more;
    return;
  }
  counted->second = {.entry = entry, .since = clock_.Monotonic()};
  Append(std::move(entry), &refused_);
}

void AuditLog::WriteCounts(bool all) const {
  const absl::Duration now = clock_.Monotonic();
  for (auto item = counts_.begin(); item != counts_.end();) {
    Counted& counted = item->second;
    if (!all && now - counted.since < kCountsFor) {
      ++item;
      continue;
    }
    if (counted.more > 0) {
      counted.entry.set_subject(absl::StrCat("and ", counted.more, " more in a minute"));
      Append(counted.entry, &refused_);
    }
    item = counts_.erase(item);
  }
}

absl::StatusOr<std::vector<v1::AuditEntry>> AuditLog::Read(int64_t after, size_t limit) const {
  MutexLock lock(&mutex_);
  WriteCounts(/*all=*/false);
  const std::vector<v1::AuditEntry> known = known_.Read(after, limit);
  const std::vector<v1::AuditEntry> refused = refused_.Read(after, limit);
  std::vector<v1::AuditEntry> entries;
  entries.reserve(known.size() + refused.size());
  std::ranges::merge(known, refused, std::back_inserter(entries), {}, &v1::AuditEntry::sequence,
                     &v1::AuditEntry::sequence);
  if (entries.size() > limit) entries.resize(limit);
  return entries;
}

int64_t AuditLog::last_sequence() const {
  MutexLock lock(&mutex_);
  return sequence_;
}

}  // namespace nsa::server
