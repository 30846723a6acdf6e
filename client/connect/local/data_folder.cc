#include "client/connect/local/data_folder.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/data/data_files.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

// A longer ending comes before that in which it ends.
constexpr std::array<std::string_view, 15> kDataEndings = {
    ".parquet", ".jsonl.zst", ".jsonl.gz", ".jsonl", ".ndjson.zst", ".ndjson.gz", ".ndjson", ".npy",
    ".bin",     ".txt.zst",   ".txt.gz",   ".txt",   ".md",         ".zst",       ".gz"};

}  // namespace

std::string_view DataEndingOf(std::string_view name) {
  const auto ending =
      std::ranges::find_if(kDataEndings, [&](std::string_view e) { return name.ends_with(e); });
  return ending == kDataEndings.end() ? std::string_view() : *ending;
}

absl::StatusOr<std::vector<std::string>> FilesOfWord(const std::string& word) {
  absl::StatusOr<std::vector<std::string>> files = ExpandPath(word);
  if (!absl::IsNotFound(files.status())) return files;
  return absl::InvalidArgumentError(files.status().message());
}

absl::StatusOr<DataFolder> LookAtFolder(const fs::path& folder) {
  std::map<std::string_view, uintmax_t> bytes;
  DataFolder data;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const fs::directory_entry& entry = *at;
    std::error_code unknown;
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".")) continue;
    if (entry.is_directory(unknown)) {
      data.left_out = absl::StrCat(folder.string(), ": folders in it are left out, such as ",
                                   entry.path().string(), "; name those with data as well");
    }
    const std::string_view ending = DataEndingOf(name);
    if (!ending.empty() && entry.is_regular_file(unknown)) {
      bytes[ending] += entry.file_size(unknown);
    }
  }
  if (error) return absl::ErrnoToStatus(error.value(), folder.string());
  if (bytes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.string(),
                     ": a folder without data (.txt, .md, .jsonl, .ndjson, .parquet, .npy or "
                     ".bin, also .gz or .zst, directly in it); name files or a pattern: '",
                     (folder / "*.ext").string(), "'"));
  }
  std::vector<std::pair<std::string_view, uintmax_t>> kinds(bytes.begin(), bytes.end());
  std::ranges::stable_sort(kinds, std::ranges::greater(),
                           [](const auto& kind) { return kind.second; });
  for (const auto& [ending, size] : kinds) {
    data.patterns.push_back((folder / absl::StrCat("*", std::string(ending))).string());
  }
  return data;
}

}  // namespace nsa::client
