#include "common/preflight/data/data_facts.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/clean_text.h"
#include "common/base/fd.h"
#include "common/base/job_file.h"

namespace nsa {

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
        named.push_back({files.FieldOf(i), std::move(path), source, files.text_field,
                         files.conversations, files.filter});
      }
    }
  }
  return named;
}

std::vector<NamedFile> AllFiles(const PreflightFacts& facts) {
  return FilesOf(facts, AllDataFiles(facts.spec.data()));
}

const LineSample& SampleOf(const PreflightFacts& facts, const NamedFile& file, size_t files) {
  constexpr int64_t kFilteredBytes = 64 << 20;  // of all files of a set
  const auto sampled = static_cast<int64_t>(std::clamp<size_t>(files, 1, kMostSampledFiles));
  const RecordFilter* const filter = file.filter.get();
  const auto [sample, is_new] = facts.line_samples->try_emplace(
      {file.path, file.text_field,
       filter == nullptr ? "" : absl::StrCat(filter->Keys(), "\n", filter->Identity())});
  if (is_new) {
    sample->second = SampleLines(file.path, file.text_field, filter,
                                 filter == nullptr ? kSampleBytes : kFilteredBytes / sampled);
  }
  return sample->second;
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

std::string Shown(std::string_view text) { return CleanLine(CutText(text, 100)); }

ProblemAndFix SplitFix(std::string_view message) {
  const size_t end = message.rfind("; ");
  if (end == std::string_view::npos) return {std::string(message), "correct it"};
  return {std::string(message.substr(0, end)), std::string(message.substr(end + 2))};
}

}  // namespace nsa
