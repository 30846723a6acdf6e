#include "common/job/did_you_mean.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"

namespace nsa {
namespace {

constexpr size_t kMaxWord = 64;

std::string Lower(std::string_view word) {
  std::string lower(word);
  absl::AsciiStrToLower(&lower);
  return lower;
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  if (a.size() > kMaxWord || b.size() > kMaxWord) return 1 << 20;
  std::array<std::array<int, kMaxWord + 1>, kMaxWord + 1> d;
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string lower = Lower(word);
  int best = std::max<int>(1, static_cast<int>(word.size()) / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(lower, Lower(candidate));
    // Do not suggest a word if all of its letters would have been replaced.
    if (distance < best && distance < static_cast<int>(candidate.size())) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace nsa
