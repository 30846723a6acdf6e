#include "worker/train/data/prepared/token_key.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/job/data/prepared.h"
#include "common/job/data/sha256.h"
#include "common/job/data/token_layout.h"
#include "common/job/data/url.h"
#include "common/job/data_source.h"
#include "worker/train/data/remote/remote.h"

namespace nsa::train {
namespace {

// Longer than the clock of any file system that has nanoseconds needs for a tick.
constexpr absl::Duration kTick = absl::Milliseconds(50);

// Changes whenever the same text would stand for other tokens.
constexpr std::string_view kVersion = "tokens of files, 1";

// Texts can hold anything, so each begins with its length.
void AddText(std::string_view text, std::string* to) {
  absl::StrAppend(to, text.size(), ":", absl::string_view(text.data(), text.size()), "\n");
}

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

absl::StatusOr<struct stat> StatOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  return info;
}

// Waits until a change of the file would show in its times.
absl::StatusOr<struct stat> SettledStatOf(const std::string& path) {
  NSA_ASSIGN_OR_RETURN(struct stat info, StatOf(path));
  const absl::Duration age = absl::Now() - absl::TimeFromTimespec(info.st_ctim);
  if (age >= kTick || age < -kTick) return info;  // the clock of another machine says nothing
  absl::SleepFor(kTick - std::max(age, absl::ZeroDuration()));
  return StatOf(path);
}

absl::Status AddFile(const std::string& path, std::string* to) {
  NSA_ASSIGN_OR_RETURN(const struct stat info, SettledStatOf(path));
  std::error_code error;
  AddText(std::filesystem::absolute(path, error).string(), to);
  absl::StrAppend(to, int64_t{info.st_size}, " ", Nanoseconds(info.st_mtim), " ",
                  Nanoseconds(info.st_ctim), " ", uint64_t{info.st_ino}, "\n");
  return absl::OkStatus();
}

// False: the server does not say which version the file is.
absl::StatusOr<bool> AddUrl(const std::string& url, ReadProgress* progress, std::string* to) {
  NSA_ASSIGN_OR_RETURN(const FileVersion version, progress->remote->Version(url, progress));
  AddText(url, to);
  AddText(progress->remote->endpoint(), to);
  AddText(version.etag, to);
  AddText(version.last_modified, to);
  absl::StrAppend(to, version.size, "\n");
  return !version.etag.empty() || !version.last_modified.empty();
}

// What is made of the files.
std::string Described(const SetOptions& set, int32_t separator) {
  const DataSourceInfo& source = DataSourceInfoOf(set.files.source);
  const bool passages = HasPassages(set.files.source, separator);
  std::string text;
  AddText(kVersion, &text);
  absl::StrAppend(&text, static_cast<int>(set.files.source), " ", separator, " ", set.token_bytes(),
                  " ", passages ? set.passage_bytes : 0, "\n");
  AddText(source.has_fields() ? set.files.text_field : "", &text);
  absl::StrAppend(&text, source.has_text() ? static_cast<int>(set.tokenizer) : 0, "\n");
  AddText(source.has_text() ? set.tokenizer_sha256 : "", &text);
  if (set.files.filter != nullptr) AddText(set.files.filter->Identity(), &text);
  if (set.files.conversations) AddText(absl::StrCat("conversations ", set.chat_format), &text);
  return text;
}

}  // namespace

absl::StatusOr<std::optional<std::string>> TokenKey(const SetOptions& set, int32_t separator,
                                                    ReadProgress* progress) {
  std::string text = Described(set, separator);
  for (const std::string& path : set.paths) {
    const bool remote = IsUrl(path) && progress->remote != nullptr;
    if (!remote) {
      NSA_RETURN_IF_ERROR(AddFile(path, &text));
    } else {
      NSA_ASSIGN_OR_RETURN(const bool versioned, AddUrl(path, progress, &text));
      if (!versioned) return std::nullopt;
    }
    if (set.files.source != v1::DATA_SOURCE_TOKENS) continue;
    // The index of a Megatron file says where its documents begin. It may come, go or change alone.
    const std::optional<std::filesystem::path> index = IndexNameOf(path);
    if (!index.has_value()) continue;
    if (!remote) {
      const absl::Status added = AddFile(*index, &text);
      if (!absl::IsNotFound(added)) NSA_RETURN_IF_ERROR(added);
      continue;
    }
    const absl::StatusOr<bool> versioned = AddUrl(*index, progress, &text);
    if (versioned.ok() && !*versioned) return std::nullopt;
    // Reading the file says what is wrong with the index.
  }
  Sha256Sum sum;
  sum.Add(text);
  return sum.Hex();
}

}  // namespace nsa::train
