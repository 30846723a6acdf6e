#include "client/rank_flag.h"

#include "absl/strings/numbers.h"

namespace nsa {

void AddRankFlag(CLI::App* command, const std::string& what, int* rank) {
  command
      ->add_option_function<std::string>(
          "--rank",
          [rank](const std::string& text) {
            if (text == "all") {
              *rank = -1;
            } else if (!absl::SimpleAtoi(text, rank) || *rank < 0) {
              throw CLI::ValidationError("--rank", "'" + text + "' (a rank from 0, or all)");
            }
          },
          what)
      ->type_name("N|all");
}

}  // namespace nsa
