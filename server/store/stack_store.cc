#include "server/store/stack_store.h"

#include <fcntl.h>

#include <algorithm>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/beneath.h"
#include "common/base/clean_text.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestStacks = 8 << 20;  // nsactl receives messages of at most 16 MiB

constexpr char kTimeForm[] = "%E4Y%m%dT%H%M%SZ";

// The paths of all files of a job, also those that an earlier version named otherwise.
std::vector<fs::path> PathsOf(const fs::path& dir, const std::string& job_id) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(dir, error)) {
    if (absl::StartsWith(file.path().filename().string(), absl::StrCat(job_id, "."))) {
      paths.push_back(file.path());
    }
  }
  return paths;
}

std::string TextOf(const std::string& why, const std::vector<v1::StackDump>& dumps) {
  std::string text = why + "\n";
  for (const v1::StackDump& dump : dumps) {
    absl::StrAppend(&text, "\n== rank ", dump.rank(), " on ", dump.node(), " pid ", dump.pid(),
                    "\n", dump.status(), "\n", dump.stacks());
    if (!dump.error().empty()) absl::StrAppend(&text, "incomplete: ", dump.error(), "\n");
  }
  return text;
}

std::string FirstLine(const fs::path& file) {
  constexpr int64_t kLongest = 4096;
  const auto opened = OpenBeneath(file.parent_path(), file.filename(), O_RDONLY);
  const std::string text = opened.ok() ? ReadSome(opened->get(), 0, kLongest) : "";
  return text.substr(0, text.find('\n'));
}

absl::Status RemoveFile(const fs::path& file) {
  std::error_code error;
  if (fs::remove(file, error) || !error) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(file.string(), ": remove: ", error.message(), "; check the disk"));
}

}  // namespace

// Empty for a file that has another form of name.
std::optional<StackStore::File> StackStore::Parse(const std::string& job_id, const fs::path& path) {
  const std::string name = path.filename().string().substr(job_id.size());
  const std::vector<std::string> parts = absl::StrSplit(name, '.');  // "", id, gen-…, time, txt
  File file = {.path = path};
  std::string error;
  if (parts.size() != 5 || parts[4] != "txt" || !absl::StartsWith(parts[2], "gen-") ||
      !absl::SimpleAtoi(parts[1], &file.id) ||
      !absl::SimpleAtoi(parts[2].substr(4), &file.generation) ||
      !absl::ParseTime(kTimeForm, parts[3], &file.saved, &error)) {
    return std::nullopt;
  }
  return file;
}

v1::SavedStacks StackStore::Describe(const File& file) {
  v1::SavedStacks saved;
  saved.set_id(file.id);
  saved.set_unix_nanos(absl::ToUnixNanos(file.saved));
  saved.set_generation(file.generation);
  saved.set_why(FirstLine(file.path));
  std::error_code error;
  const uintmax_t bytes = fs::file_size(file.path, error);
  if (!error) saved.set_bytes(static_cast<int64_t>(bytes));
  return saved;
}

std::vector<StackStore::File> StackStore::Files(const std::string& job_id) const {
  std::vector<File> files;
  for (const fs::path& path : PathsOf(dir_, job_id)) {
    if (std::optional<File> file = Parse(job_id, path)) files.push_back(*std::move(file));
  }
  std::ranges::sort(files, {}, &File::id);
  return files;
}

absl::StatusOr<StackStore::Saved> StackStore::Save(const std::string& job_id, int64_t generation,
                                                   const std::string& why,
                                                   const std::vector<v1::StackDump>& dumps) {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) {
    return absl::InternalError(
        absl::StrCat(dir_.string(), ": ", error.message(), "; check the disk and the rights"));
  }
  const std::string text = TextOf(why, dumps);
  MutexLock lock(&mutex_);
  std::vector<File> files = Files(job_id);
  const int64_t id = files.empty() ? 1 : files.back().id + 1;
  const fs::path path =
      dir_ / absl::StrFormat("%s.%d.gen-%06d.%s.txt", job_id, id, generation,
                             absl::FormatTime(kTimeForm, clock_.Wall(), absl::UTCTimeZone()));
  NSA_RETURN_IF_ERROR(WriteFileAtomically(path, text));
  for (size_t i = 0; i + kKept <= files.size(); ++i) {
    NSA_RETURN_IF_ERROR(RemoveFile(files[i].path));
  }
  return Saved{.id = id, .file = path};
}

std::vector<v1::SavedStacks> StackStore::List(const std::string& job_id) const {
  std::vector<v1::SavedStacks> list;
  for (const File& file : Files(job_id)) list.push_back(Describe(file));
  return list;
}

absl::StatusOr<v1::GetSavedStacksResponse> StackStore::Read(const std::string& job_id,
                                                            int64_t id) const {
  const std::vector<File> files = Files(job_id);
  const auto found =
      id == 0 && !files.empty() ? std::prev(files.end()) : std::ranges::find(files, id, &File::id);
  if (found == files.end()) {
    return absl::NotFoundError(
        files.empty()
            ? absl::StrCat("job ", job_id, " has no saved stacks; `nsactl dump-stack ", job_id,
                           "` takes them now")
            : absl::StrCat("id: ", id, " (from ", files.front().id, " to ", files.back().id,
                           "); `nsactl dump-stack ", job_id, " --saved` lists them"));
  }
  v1::GetSavedStacksResponse response;
  *response.mutable_saved() = Describe(*found);
  NSA_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(found->path));
  if (text.size() > kLongestStacks) {
    text.resize(Shorten(text, kLongestStacks).size());
    absl::StrAppend(&text, "\n(cut here; the coordinator's machine has all of it in ",
                    found->path.string(), ")\n");
  }
  response.set_text(std::move(text));
  return response;
}

absl::Status StackStore::Remove(const std::string& job_id) {
  for (const fs::path& file : PathsOf(dir_, job_id)) NSA_RETURN_IF_ERROR(RemoveFile(file));
  return absl::OkStatus();
}

}  // namespace nsa::server
