#include "common/preflight/data/data_facts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "common/base/fd.h"

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
        named.push_back({files.FieldOf(i), std::move(path), source, files.text_field});
      }
    }
  }
  return named;
}

std::vector<NamedFile> AllFiles(const PreflightFacts& facts) {
  return FilesOf(facts, AllDataFiles(facts.spec.data()));
}

std::optional<std::string> ReadFault(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return std::strerror(errno);
  struct stat info = {};
  const int failed = fstat(file.get(), &info);
  char byte = 0;
  const ssize_t got = S_ISREG(info.st_mode) ? read(file.get(), &byte, 1) : 0;
  if (failed != 0 || got < 0) return std::strerror(errno);
  if (S_ISDIR(info.st_mode)) return "is a folder (must be a file)";
  if (!S_ISREG(info.st_mode)) return "is not a regular file";
  if (got == 0) return "is empty";
  return std::nullopt;
}

std::string Sample(const std::string& path, int64_t at, int64_t most) {
  std::string bytes(static_cast<size_t>(most), '\0');
  std::ifstream in(path, std::ios::binary);
  in.seekg(at);
  in.read(bytes.data(), std::ssize(bytes));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return bytes;
}

ProblemAndFix SplitFix(std::string_view message) {
  const size_t end = message.rfind("; ");
  if (end == std::string_view::npos) return {std::string(message), "correct it"};
  return {std::string(message.substr(0, end)), std::string(message.substr(end + 2))};
}

}  // namespace nsa
