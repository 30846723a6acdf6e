#include "client/at_least.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nsa {

CLI::Validator AtLeast(int64_t least) {
  return CLI::Validator(
      [least](const std::string& text) -> std::string {
        int64_t number = 0;
        if (absl::SimpleAtoi(text, &number) && number >= least) return "";
        return absl::StrCat("'", text, "' (a whole number of at least ", least, ")");
      },
      "");
}

}  // namespace nsa
