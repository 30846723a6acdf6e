#include "common/job/data/data_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "common/job/data/prepared.h"
#include "common/job/data/url.h"
#include "common/job/data/wildcard.h"
#include "common/job/data_source.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

std::string FieldOrDefault(const v1::DataSpec& data, const std::string& field) {
  if (!field.empty()) return field;
  return std::string(LearnsAnswers(data) ? kDefaultMessagesField : kDefaultTextField);
}

// The source of a file whose source the job does not name.
v1::DataSource SourceOf(const std::string& path) {
  return path.ends_with(kPreparedEnding) ? v1::DATA_SOURCE_TOKENS : TextSourceOf(path);
}

// Of data.path and data.val_path.
std::shared_ptr<const RecordFilter> FilterOf(const v1::DataSpec& data) {
  return RecordFilter::Make(data.where(), "data.where", data.except(), "data.except");
}

// Of a set of data.val.
std::shared_ptr<const RecordFilter> FilterOfSet(const v1::DataSpec& data, const std::string& name) {
  const auto of = [&](const google::protobuf::Map<std::string, v1::RecordFields>& sets) {
    const auto found = sets.find(name);
    return found == sets.end() ? RecordFilter::Fields() : found->second.field();
  };
  return RecordFilter::Make(of(data.val_where()), absl::StrCat("data.val_where.", name),
                            of(data.val_except()), absl::StrCat("data.val_except.", name));
}

}  // namespace

std::string DataFiles::FieldOf(size_t path) const {
  const bool map = field.starts_with("data.val.");
  return map ? field : absl::StrFormat("%s[%d]", field, first + static_cast<int>(path));
}

absl::Status CheckFilter(const DataFiles& files, const FilterTally& all) {
  if (files.filter == nullptr || all.passed > 0) return absl::OkStatus();
  const std::vector<FilterFault> faults = files.filter->FaultsIn(all);
  return faults.empty() ? absl::OkStatus() : absl::InvalidArgumentError(faults.front().Text());
}

std::vector<v1::DataWarning> FilterWarnings(const DataFiles& files, const FilterTally& all) {
  std::vector<v1::DataWarning> warnings;
  if (files.filter == nullptr || files.filter_is_shared) return warnings;
  for (FilterFault& fault : files.filter->FaultsIn(all)) {
    v1::DataWarning& warning = warnings.emplace_back();
    warning.set_field(std::move(fault.key));
    warning.set_problem(std::move(fault.problem));
    warning.set_fix(std::move(fault.fix));
    warning.set_condition(fault.condition);
  }
  return warnings;
}

std::string WarningText(const v1::DataWarning& warning) {
  return absl::StrCat(warning.field(), ": ", warning.problem(), "; ", warning.fix());
}

std::string TextFieldOf(const v1::DataSpec& data) {
  return FieldOrDefault(data, data.text_field());
}

std::vector<DataFiles> TrainingFiles(const v1::DataSpec& data) {
  std::vector<DataFiles> all;
  for (int i = 0; i < data.mix_size(); ++i) {
    const v1::MixSource& mix = data.mix(i);
    all.push_back(
        {.name = mix.name(),
         .field = absl::StrFormat("data.mix[%d].path", i),
         .source = mix.source(),
         .paths = {mix.path().begin(), mix.path().end()},
         .text_field = FieldOrDefault(data, mix.text_field()),
         .conversations = LearnsAnswers(data),
         .weight = mix.weight(),
         .filter = RecordFilter::Make(mix.where(), absl::StrFormat("data.mix[%d].where", i),
                                      mix.except(), absl::StrFormat("data.mix[%d].except", i))});
  }
  if (!all.empty()) return all;
  all.push_back({.field = "data.path",
                 .source = data.source(),
                 .paths = {data.path().begin(), data.path().end()},
                 .text_field = TextFieldOf(data),
                 .conversations = LearnsAnswers(data),
                 .filter = FilterOf(data),
                 .filter_is_shared = !data.val_path().empty()});
  return all;
}

std::vector<DataFiles> ValidationFiles(const v1::DataSpec& data) {
  std::vector<DataFiles> all;
  if (data.val_path().empty()) return all;
  const DataFiles files = {.field = "data.val_path",
                           .source = data.source(),
                           .paths = {data.val_path().begin(), data.val_path().end()},
                           .text_field = TextFieldOf(data),
                           .conversations = LearnsAnswers(data),
                           .filter = FilterOf(data),
                           .filter_is_shared = data.mix().empty()};
  if (data.mix().empty()) return {files};
  for (int i = 0; i < data.val_path_size(); ++i) {
    DataFiles one = files;
    one.source = SourceOf(data.val_path(i));
    one.paths = {data.val_path(i)};
    one.first = i;
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<DataFiles> NamedValidationFiles(const v1::DataSpec& data) {
  const std::map<std::string, std::string> sets(data.val().begin(), data.val().end());
  std::vector<DataFiles> all;
  for (const auto& [name, path] : sets) {
    all.push_back({.name = name,
                   .field = absl::StrCat("data.val.", name),
                   .source = SourceOf(path),
                   .paths = {path},
                   .text_field = TextFieldOf(data),
                   .conversations = LearnsAnswers(data),
                   .filter = FilterOfSet(data, name)});
  }
  return all;
}

std::vector<DataFiles> AllDataFiles(const v1::DataSpec& data) {
  std::vector<DataFiles> all = TrainingFiles(data);
  for (DataFiles& files : ValidationFiles(data)) all.push_back(std::move(files));
  for (DataFiles& files : NamedValidationFiles(data)) all.push_back(std::move(files));
  return all;
}

bool ReadsOnlyTokens(const v1::DataSpec& data) {
  return std::ranges::all_of(TrainingFiles(data), [](const DataFiles& files) {
    return DataSourceInfoOf(files.source).format == DocumentFormat::kTokens;
  });
}

bool ReadsText(const v1::DataSpec& data) {
  return std::ranges::any_of(AllDataFiles(data), [](const DataFiles& files) {
    return DataSourceInfoOf(files.source).has_text();
  });
}

bool IsPattern(std::string_view path) {
  const size_t slash = path.rfind('/');
  return (!IsUrl(path) || IsHubUrl(path)) &&
         HasWildcard(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

absl::StatusOr<std::vector<std::string>> PathExpander::Matches(const std::string& path) {
  const fs::path pattern = path;
  const std::string folder = pattern.has_parent_path() ? pattern.parent_path().string() : ".";
  const absl::StatusOr<Fd> opened = OpenJobFolder(folder);
  if (absl::IsCancelled(opened.status())) return opened.status();
  if (!opened.ok()) {
    return absl::NotFoundError(absl::StrCat(path, ": ", opened.status().message(),
                                            " (the pattern's folder); correct the path"));
  }
  std::error_code error;
  fs::directory_iterator entry(absl::StrCat("/proc/self/fd/", opened->get()), error);
  std::vector<std::string> names;
  const std::string wanted = pattern.filename().string();
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (++entries_ > kMostEntries) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: the patterns of the job look through more than %d entries of folders; use fewer "
          "patterns, or folders with fewer files",
          path, kMostEntries));
    }
    if (entries_ % 1'024 == 0 && abandoned_ && abandoned_()) return absl::CancelledError(path);
    std::string name = entry->path().filename().string();
    if (fnmatch(wanted.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
    std::error_code unknown;
    if (entry->is_directory(unknown)) continue;
    if (++matches_ > kMostMatches) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: more than %d files match; use fewer, larger files", path, kMostMatches));
    }
    names.push_back(std::move(name));
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat(path, ": ", error.message(), " (", folder,
                                            ", the pattern's folder); correct the path"));
  }
  std::sort(names.begin(), names.end());
  for (std::string& name : names) name = (pattern.parent_path() / name).string();
  return names;
}

absl::StatusOr<std::vector<std::string>> PathExpander::Find(const std::string& path) {
  if (!HasWildcard(path) || IsUrl(path) || JobPathExists(path)) {
    return std::vector<std::string>{path};
  }
  const fs::path folder = fs::path(path).parent_path();
  if (HasWildcard(folder.string()) && !JobPathExists(folder)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": no such folder, and a wildcard in a folder's name (only in the name of a file); ",
        "correct it, or list the folders"));
  }
  if (!IsPattern(path)) return std::vector<std::string>{path};
  NSA_ASSIGN_OR_RETURN(std::vector<std::string> files, Matches(path));
  if (!files.empty()) return files;
  return absl::NotFoundError(
      absl::StrCat(path, ": no file matches this pattern; correct it, or copy the files there"));
}

const absl::StatusOr<std::vector<std::string>>& PathExpander::Expand(const std::string& path) {
  if (!HasWildcard(path)) {
    last_ = std::vector<std::string>{path};
    return last_;
  }
  const auto known = known_.find(path);
  if (known != known_.end()) return known->second;
  return known_.emplace(path, Find(path)).first->second;
}

absl::StatusOr<std::vector<std::string>> ExpandPath(const std::string& path) {
  PathExpander one;
  return one.Expand(path);
}

}  // namespace nsa
