#include "common/job/out_dir_number.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/job_file.h"

namespace nsa {
namespace {

constexpr char kNamePlace[] = "{name}";
constexpr char kNumberPlace[] = "{n}";
constexpr int64_t kMostNumbers = 1'000'000;

}  // namespace

bool HasOutDirNumber(const std::string& out_dir) {
  return absl::StrContains(out_dir, kNamePlace) || absl::StrContains(out_dir, kNumberPlace);
}

void FillOutDir(const std::function<bool(const std::string& out_dir)>& taken, v1::JobSpec* spec) {
  if (!HasOutDirNumber(spec->train().out_dir())) return;
  const std::string named =
      absl::StrReplaceAll(spec->train().out_dir(), {{kNamePlace, spec->name()}});
  std::string folder = named;
  for (int64_t n = 1; n <= kMostNumbers; ++n) {
    folder = absl::StrReplaceAll(named, {{kNumberPlace, absl::StrCat(n)}});
    if (folder == named || !taken(folder)) break;
  }
  spec->mutable_train()->set_out_dir(folder);
}

void FillOutDirHere(v1::JobSpec* spec) { FillOutDir(JobPathExists, spec); }

}  // namespace nsa
