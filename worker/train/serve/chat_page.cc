#include "worker/train/serve/chat_page.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/job/data/sha256.h"

namespace nsa::train::serve {
namespace {

// 'sha256-…' of what is between the tags of the only such element.
std::string HashOf(std::string_view element) {
  const std::string open =
      absl::StrCat("<", absl::string_view(element.data(), element.size()), ">");
  const std::string close =
      absl::StrCat("</", absl::string_view(element.data(), element.size()), ">");
  const size_t begin = kChatPage.find(open) + open.size();
  Sha256Sum sum;
  sum.Add(kChatPage.substr(begin, kChatPage.find(close, begin) - begin));
  return absl::StrCat("'sha256-", absl::Base64Escape(absl::HexStringToBytes(sum.Hex())), "'");
}

}  // namespace

const std::string& ChatPagePolicy() {
  static const auto* const kPolicy = new std::string(absl::StrCat(
      "default-src 'none'; script-src ", HashOf("script"), "; style-src ", HashOf("style"),
      "; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'"));
  return *kPolicy;
}

}  // namespace nsa::train::serve
