#include "client/show/draw/stroke_font.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"

namespace nsa::client {
namespace {

constexpr double kSpace = 2.6;
constexpr double kBetween = 1.7;
constexpr double kDigit = 3;  // all digits are this wide
constexpr int kSmoothings = 2;

// The strokes of U+0020 to U+007E, separated by spaces. A stroke is a list of points, two digits
// each: x from the left, and y upwards with 2 at the baseline. After ~ its corners are rounded,
// after o it is closed and rounded.
constexpr std::array<std::string_view, 95> kGlyphs = {
    "",
    "0804 0202",
    "0806 2826",
    "1218 3238 0444 0646",
    "~4748080545420203 2921",
    "0248 o08281606 o24444222",
    "~420608282604022244",
    "0806",
    "~29070321",
    "~09272301",
    "2824 1735 1537",
    "0545 2327",
    "1201",
    "0424",
    "0202",
    "0238",
    "o08383202",
    "172822",
    "~0708383602 0232",
    "~0708383515 ~1535320203",
    "22280434",
    "380805 ~0535320203",
    "~37380804 o05353202",
    "083812",
    "o08383505 o05353202",
    "o08383505 ~36320203",
    "0202 0505",
    "0505 1201",
    "360533",
    "0434 0636",
    "063503",
    "~070838351514 1212",
    "o08484202 ~33361614133344",
    "022842 1434",
    "0208 ~0838484505 ~0545424202 0232",
    "~474808024243",
    "0208 ~08384842420202",
    "48080242 0535",
    "480802 0535",
    "~474808024245 4525",
    "0208 4248 0545",
    "0208",
    "~38320203",
    "0208 4804 1542",
    "080242",
    "0208244842",
    "02084248",
    "o08484202",
    "0208 ~0838484505",
    "o08484202 2541",
    "0208 ~0838484505 2542",
    "~4748080545420203",
    "0848 2822",
    "~08024248",
    "082248",
    "0812263248",
    "0842 0248",
    "082548 2522",
    "08480242",
    "29090121",
    "0832",
    "09292101",
    "062846",
    "0141",
    "0817",
    "o06363202 3632",
    "0802 o06363202",
    "~353606023233",
    "3832 o06363202",
    "0434 ~343606023233",
    "~281812 0626",
    "o06363202 ~36300001",
    "0802 ~04063632",
    "0602 0808",
    "~161000 1818",
    "0802 3604 1532",
    "0802",
    "0602 ~04062622 ~24264642",
    "0602 ~04063632",
    "o06363202",
    "0600 o06363202",
    "3630 o06363202",
    "0602 ~040626",
    "~3536060434320203",
    "~181232 0626",
    "~06023236 3632",
    "062246",
    "0612253246",
    "0632 0236",
    "0622 4610",
    "06360232",
    "~29191505 ~05151121",
    "0900",
    "~09191525 ~25151101",
    "~0405153436",
};

// Cuts every corner (Chaikin); of an open stroke the ends stay.
std::vector<Point> Smooth(const std::vector<Point>& points, bool closed) {
  std::vector<Point> smooth;
  const size_t count = points.size();
  if (!closed) smooth.push_back(points.front());
  for (size_t i = 0; i + 1 < count + (closed ? 1 : 0); ++i) {
    const Point& a = points[i];
    const Point& b = points[(i + 1) % count];
    smooth.push_back({0.75 * a.x + 0.25 * b.x, 0.75 * a.y + 0.25 * b.y});
    smooth.push_back({0.25 * a.x + 0.75 * b.x, 0.25 * a.y + 0.75 * b.y});
  }
  if (!closed) smooth.push_back(points.back());
  return smooth;
}

std::vector<Point> Stroke(std::string_view code) {
  const bool closed = code.starts_with('o');
  const bool round = closed || code.starts_with('~');
  if (round) code.remove_prefix(1);
  std::vector<Point> points;
  for (size_t i = 0; i + 1 < code.size(); i += 2) {
    const Point point = {static_cast<double>(code[i] - '0'),
                         static_cast<double>('2' - code[i + 1])};
    const bool again = !points.empty() && points.back().x == point.x && points.back().y == point.y;
    if (!again) points.push_back(point);
  }
  for (int i = 0; round && points.size() > 2 && i < kSmoothings; ++i) {
    points = Smooth(points, closed);
  }
  if (closed) points.push_back(points.front());
  return points;
}

// Text in ASCII.
std::string Spelled(const std::string& text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kSpellings = {
      {{"µ", "u"}, {"–", "-"}, {"−", "-"}, {"×", "x"}, {"·", "-"}, {"…", "..."}, {"→", ">"}}};
  std::string ascii;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    const auto* const found = std::ranges::find_if(
        kSpellings, [&](const auto& spelling) { return rest.starts_with(spelling.first); });
    if (found != kSpellings.end()) {
      ascii += found->second;
      i += found->first.size();
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[i++]);
    if (byte >= ' ' && byte < 0x7F) {
      ascii += static_cast<char>(byte);
    } else if ((byte & 0xC0) != 0x80) {
      ascii += '?';
    }
  }
  return ascii;
}

}  // namespace

StrokeText StrokesOf(const std::string& text) {
  StrokeText drawn;
  double x = 0;
  for (const char c : Spelled(text)) {
    if (c == ' ') {
      x += kSpace;
      continue;
    }
    const bool digit = c >= '0' && c <= '9';
    double wide = digit ? kDigit : 0;
    for (const std::string& code :
         std::vector<std::string>(absl::StrSplit(std::string(kGlyphs[c - ' ']), ' '))) {
      std::vector<Point> points = Stroke(code);
      for (Point& point : points) {
        wide = std::max(wide, point.x);
        point.x += x;
      }
      drawn.strokes.push_back(std::move(points));
    }
    x += wide + kBetween;
    drawn.width = x - kBetween;
  }
  return drawn;
}

}  // namespace nsa::client
