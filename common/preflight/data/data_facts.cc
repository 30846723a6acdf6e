#include "common/preflight/data/data_facts.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/strip.h"
#include "common/base/fd.h"
#include "common/base/job_file.h"

namespace nsa {
namespace {

constexpr std::string_view kCompressed[] = {".gz", ".zst"};

}  // namespace

bool IsGenerated(const v1::DataSpec& data) {
  return data.mix().empty() && !DataSourceInfoOf(data.source()).has_files();
}

bool MayLook(const PreflightFacts& facts) {
  return facts.context.check_files && !IsGenerated(facts.spec.data());
}

bool NamedFile::prepared() const {
  return source->format == DocumentFormat::kTokens && IsPreparedFolder(path);
}

bool HasEnding(const std::string& path, std::span<const std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

bool IsCompressed(const std::string& path) { return HasEnding(path, kCompressed); }

std::vector<NamedFile> FilesOf(const PreflightFacts& facts, const std::vector<DataFiles>& all) {
  std::vector<NamedFile> named;
  for (const DataFiles& files : all) {
    const DataSourceInfo* const source = &DataSourceInfoOf(files.source);
    for (size_t i = 0; i < files.paths.size(); ++i) {
      std::vector<std::string> paths = {files.paths[i]};
      if (MayLook(facts)) {
        if (const auto& found = facts.paths->Expand(files.paths[i]); found.ok()) paths = *found;
      }
      for (std::string& path : paths) {
        if (named.size() == kMostMatches || facts.abandoned()) return named;
        named.push_back(
            {files.FieldOf(i), std::move(path), source, files.text_field, files.conversations});
      }
    }
  }
  return named;
}

std::vector<NamedFile> AllFiles(const PreflightFacts& facts) {
  return FilesOf(facts, AllDataFiles(facts.spec.data()));
}

std::optional<std::string> ReadFault(const std::string& path) {
  const absl::StatusOr<Fd> file = OpenJobFile(path);
  if (!file.ok()) {
    absl::string_view why = file.status().message();
    absl::ConsumePrefix(&why, path + ": ");
    return std::string(why);
  }
  char byte = 0;
  const ssize_t got = read(file->get(), &byte, 1);
  if (got < 0) return std::strerror(errno);
  if (got == 0) return "is empty";
  return std::nullopt;
}

std::string Sample(const std::string& path, int64_t at, int64_t most) {
  const absl::StatusOr<Fd> file = OpenJobFile(path);
  return file.ok() ? ReadSome(file->get(), at, most) : "";
}

ProblemAndFix SplitFix(std::string_view message) {
  const size_t end = message.rfind("; ");
  if (end == std::string_view::npos) return {std::string(message), "correct it"};
  return {std::string(message.substr(0, end)), std::string(message.substr(end + 2))};
}

}  // namespace nsa
