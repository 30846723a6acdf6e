#include "server/notice/message/describe.h"

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"

namespace nsa::server {
namespace {

constexpr size_t kLineBytes = 200;

}  // namespace

std::string ShownLine(std::string_view text) { return CutText(CleanLine(text), kLineBytes); }

std::string JobLink(const v1::Job& job, const Teller& teller) {
  if (teller.page_url.empty() || job.id().empty()) return "";
  return absl::StrCat(teller.page_url, "#/job/", job.id());
}

}  // namespace nsa::server
