// Charts: axes, thinning, and both drawings.
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "client/show/draw/axis.h"
#include "client/show/draw/chart_grid.h"
#include "client/show/draw/markup.h"
#include "client/show/draw/svg_chart.h"
#include "client/show/draw/text_chart.h"
#include "client/show/human.h"
#include "gmock/gmock.h"
#include "tests/client/markup_check.h"

namespace nsa::client {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kGreatest = std::numeric_limits<double>::max();

std::vector<std::string> Labels(const Axis& axis) {
  std::vector<std::string> labels;
  for (const double tick : axis.ticks) labels.push_back(TickText(axis, tick));
  return labels;
}

int Count(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

Chart ChartOf(std::vector<double> y) {
  Chart chart{.title = "loss", .x_name = "step"};
  Curve& curve = chart.curves.emplace_back();
  for (size_t i = 0; i < y.size(); ++i) curve.x.push_back(static_cast<double>(i + 1));
  curve.y = std::move(y);
  return chart;
}

TEST(Axis, IsLabelledAtRoundNumbers) {
  EXPECT_THAT(Labels(MakeAxis(0, 1, 5, Unit::kNumber)),
              ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_THAT(Labels(MakeAxis(1.03, 5.6, 4, Unit::kNumber)), ElementsAre("2", "4"));
  EXPECT_THAT(Labels(MakeAxis(1, 1500, 6, Unit::kCount)), ElementsAre("500", "1000", "1500"));
  EXPECT_THAT(Labels(MakeAxis(0, 3.1e6, 6, Unit::kCount)), ElementsAre("0", "1M", "2M", "3M"));
  EXPECT_THAT(Labels(MakeAxis(0, 0.0003, 3, Unit::kNumber)),
              ElementsAre("0", "1e-04", "2e-04", "3e-04"));
  EXPECT_THAT(Labels(MakeAxis(-2, 2, 4, Unit::kNumber)), ElementsAre("-2", "-1", "0", "1", "2"));
}

TEST(Axis, HasBytesInPowersOfTwoAndTimesInTheirUnits) {
  EXPECT_THAT(Labels(MakeAxis(0, 900e6, 4, Unit::kBytes)),
              ElementsAre("0", "256 MiB", "512 MiB", "768 MiB"));
  const double gib = 1024.0 * 1024 * 1024;
  EXPECT_THAT(Labels(MakeAxis(40 * gib, 40.5 * gib, 4, Unit::kBytes)),
              ElementsAre("40.000 GiB", "40.125 GiB", "40.250 GiB", "40.375 GiB", "40.500 GiB"))
      << "a tick is what it says";
  EXPECT_THAT(Labels(MakeAxis(0, 200, 5, Unit::kSeconds)),
              ElementsAre("0", "1 min", "2 min", "3 min"));
  EXPECT_THAT(Labels(MakeAxis(0, 0.04, 4, Unit::kSeconds)),
              ElementsAre("0", "10 ms", "20 ms", "30 ms", "40 ms"));
  EXPECT_THAT(Labels(MakeAxis(0, 3 * 86400, 3, Unit::kSeconds)),
              ElementsAre("0", "1 d", "2 d", "3 d"));
  EXPECT_THAT(Labels(MakeAxis(0, 90, 6, Unit::kSeconds)),
              ElementsAre("0", "15 s", "30 s", "45 s", "60 s", "75 s", "90 s"));
}

TEST(Axis, IsUsefulForEveryRange) {
  const std::vector<std::pair<double, double>> ranges = {{0, 0},
                                                         {5, 5},
                                                         {-5, -5},
                                                         {kNan, kNan},
                                                         {kInfinite, -kInfinite},
                                                         {-kGreatest, kGreatest},
                                                         {0, kGreatest},
                                                         {5e-324, 1e-323},
                                                         {1e9, 1e9 + 1e-6},
                                                         {1, 0},
                                                         {-1e-300, 1e300},
                                                         {0.1, 0.1 + 1e-15}};
  for (const Unit unit : {Unit::kNumber, Unit::kCount, Unit::kBytes, Unit::kSeconds}) {
    for (const auto& [least, most] : ranges) {
      const Axis axis = MakeAxis(least, most, 5, unit);
      EXPECT_TRUE(std::isfinite(axis.least) && std::isfinite(axis.most)) << least << " " << most;
      EXPECT_LT(axis.least, axis.most) << least << " " << most;
      EXPECT_LE(axis.ticks.size(), 100u);
      const std::vector<std::string> labels = Labels(axis);
      EXPECT_EQ(std::set<std::string>(labels.begin(), labels.end()).size(), labels.size())
          << least << " " << most << ": " << ::testing::PrintToString(labels);
      for (const double value : {least, most, kGreatest, -kGreatest, 0.0}) {
        if (std::isnan(value)) continue;
        EXPECT_GE(Place(axis, value), 0) << value;
        EXPECT_LE(Place(axis, value), 1) << value;
      }
    }
  }
}

TEST(Axis, AnAmountOfMemoryIsDrawnFromZero) {
  Chart chart = ChartOf({40e9, 40.2e9, 40.4e9});
  EXPECT_GT(VerticalAxis(chart, 5).least, 30e9);
  chart.y_unit = Unit::kBytes;
  EXPECT_EQ(VerticalAxis(chart, 5).least, 0);
}

TEST(SvgChart, LongNamesThatEndDifferentlyStayDifferent) {
  Chart chart = ChartOf({1, 2, 3});
  const std::string stem(60, 'a');
  chart.curves[0].name = stem + "-lr-1";
  chart.curves.push_back(chart.curves[0]);
  chart.curves[1].name = stem + "-lr-2";
  const std::string svg = SvgFile({chart}, 800, 400);
  EXPECT_THAT(svg, HasSubstr("...aaaaaaaaaaaaaa-lr-1, last 3.000<"));
  EXPECT_THAT(svg, HasSubstr("...aaaaaaaaaaaaaa-lr-2, last 3.000<"));
  const std::string text = Joined(TextChart(chart, {.columns = 100}));
  EXPECT_THAT(text, HasSubstr("-lr-1"));
  EXPECT_THAT(text, HasSubstr("-lr-2"));
}

TEST(Axis, OneNumberIsInTheMiddle) {
  const Axis axis = MakeAxis(5, 5, 5, Unit::kNumber);
  EXPECT_DOUBLE_EQ(Place(axis, 5), 0.5);
}

TEST(Thin, KeepsEveryExtremeAndTheMeans) {
  Curve curve;
  for (int i = 0; i < 1000; ++i) {
    curve.x.push_back(i);
    curve.y.push_back(i == 567 ? 99 : 1);
  }
  const std::vector<Bucket> buckets = Thin(curve, 30);
  EXPECT_LE(buckets.size(), 30u);
  double greatest = 0;
  for (const Bucket& bucket : buckets) greatest = std::max(greatest, bucket.greatest);
  EXPECT_EQ(greatest, 99);
  EXPECT_EQ(buckets[0].mean, 1);
}

TEST(Thin, DoesNotOverflowAndLeavesGaps) {
  const Curve large{.x = {1, 2, 3}, .y = {kGreatest, kGreatest, kGreatest}};
  EXPECT_DOUBLE_EQ(Thin(large, 1)[0].mean, kGreatest);
  const Curve gap{.x = {1, 2, 3, 4}, .y = {1, kNan, kInfinite, 2}};
  const std::vector<Bucket> buckets = Thin(gap, 4);
  EXPECT_TRUE(std::isnan(buckets[1].mean));
  EXPECT_TRUE(std::isnan(buckets[2].mean)) << "infinity is not drawn";
  EXPECT_TRUE(Thin({}, 10).empty());
}

TEST(SvgChart, DrawsALineDotsAndNames) {
  Chart chart = ChartOf({3, 2, 1});
  chart.curves[0].name = "training";
  chart.curves.push_back(
      {.name = "validation", .x = {2, 3}, .y = {2.5, 1.5}, .dots = true, .colour = 1});
  const std::string svg = SvgFile({chart}, 800, 400);
  EXPECT_EQ(MarkupProblem(svg), "");
  EXPECT_EQ(Count(svg, "<polyline"), 2);
  EXPECT_EQ(Count(svg, "<circle"), 3) << "two validations and one in the legend";
  EXPECT_THAT(svg, AllOf(HasSubstr(" class=\"f0\">training, last 1.000<"),
                         HasSubstr(" class=\"f1\">validation, last 1.500<"), HasSubstr(">step<"),
                         HasSubstr("prefers-color-scheme"), Not(HasSubstr("band\"/>"))));
  EXPECT_THAT(SvgChart(chart, 800, 400), Not(HasSubstr("<style>")));
}

TEST(SvgChart, ShowsTheSpreadOfManyPointsInLittleSpace) {
  std::vector<double> y;
  for (int i = 0; i < 100000; ++i) y.push_back(2 + std::sin(i));
  const std::string svg = SvgFile({ChartOf(y)}, 800, 400);
  EXPECT_EQ(MarkupProblem(svg), "");
  EXPECT_EQ(Count(svg, " band\"/>"), 1);
  EXPECT_LT(svg.size(), 60000u);
}

TEST(Thin, KeepsTheSpreadOfPointsThatAreMeans) {
  const Curve curve{.x = {1, 2, 3},
                    .y = {5, 4, kNan},
                    .least = {2, 3, kNan},
                    .greatest = {7, 9, kNan},
                    .nonfinite = {0, 2, 8}};
  const std::vector<Bucket> one = Thin(curve, 1);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].mean, 4.5);
  EXPECT_EQ(one[0].least, 2);
  EXPECT_EQ(one[0].greatest, 9);
  EXPECT_EQ(one[0].nonfinite, 10);
}

TEST(SvgChart, ANoisyCurveIsPaleBelowItsMean) {
  std::vector<double> noisy, smooth;
  for (int i = 0; i < 300; ++i) {
    noisy.push_back(2 + (i % 2 == 0 ? 0.5 : -0.5));
    smooth.push_back(300 - i);
  }
  const std::string svg = SvgFile({ChartOf(noisy)}, 800, 400);
  EXPECT_EQ(Count(svg, " pale\"/>"), 1);
  EXPECT_EQ(Count(svg, "<polyline"), 2);
  const std::vector<Bucket> means = RunningMean(Thin(ChartOf(noisy).curves[0], 1000));
  ASSERT_EQ(means.size(), 300u);
  for (size_t i = 10; i < 290; ++i) EXPECT_NEAR(means[i].mean, 2, 0.1) << i;
  EXPECT_EQ(means[0].mean, 2.5) << "nothing is before the first point";
  EXPECT_TRUE(RunningMean(Thin(ChartOf(smooth).curves[0], 1000)).empty());
  EXPECT_TRUE(RunningMean(Thin(ChartOf({1, 2, 1, 2}).curves[0], 1000)).empty()) << "too few";
}

TEST(SvgChart, SeveralChartsAreOnePicture) {
  const std::string svg = SvgFile({ChartOf({1, 2}), ChartOf({3, 4})}, 800, 400);
  EXPECT_EQ(MarkupProblem(svg), "");
  EXPECT_EQ(Count(svg, "<style>"), 1);
  EXPECT_EQ(Count(svg, "class=\"chart\""), 2);
  EXPECT_THAT(svg, AllOf(HasSubstr("height=\"800\""), HasSubstr("translate(0,400)")));
}

TEST(Axis, EndsBelowSpikesAndSaysHowHighTheyAre) {
  std::vector<double> y(200, 1.0);
  y[3] = 312.4;
  Chart chart = ChartOf(y);
  EXPECT_GT(VerticalAxis(chart, 5).most, 312);
  EXPECT_EQ(VerticalAxis(chart, 5).above, 0);
  chart.spikes = true;
  EXPECT_LT(VerticalAxis(chart, 5).most, 2);
  EXPECT_EQ(VerticalAxis(chart, 5).above, 312.4);
  EXPECT_THAT(SvgChart(chart, 800, 400), HasSubstr("▲ up to 312.4"));
  EXPECT_THAT(TextChart(chart, {})[0], HasSubstr("up to 312.4"));
}

TEST(Axis, BeginsAtZeroWhereItShould) {
  Chart chart = ChartOf({100, 101});
  EXPECT_GT(VerticalAxis(chart, 5).least, 90);
  chart.from_zero = true;
  EXPECT_EQ(VerticalAxis(chart, 5).least, 0);
}

TEST(Axis, DoesNotReachOverTheSpreadOfItsPoints) {
  Chart chart;
  chart.curves.push_back({.x = {1, 2}, .y = {5, 4}, .least = {0, 1}, .greatest = {90, 9}});
  EXPECT_LT(VerticalAxis(chart, 5).most, 6);
}

TEST(SvgChart, LeavesGapsAndShowsSinglePoints) {
  const std::string gap = SvgFile({ChartOf({3, 2, kNan, 1.5, kInfinite, 1, 0.5})}, 800, 400);
  EXPECT_EQ(Count(gap, "<polyline"), 2);
  EXPECT_EQ(Count(gap, "<circle"), 1) << "between two gaps";
  EXPECT_THAT(gap, Not(ContainsRegex("[\" ,]-?(nan|inf)[\" ,]"))) << "no place is one";
  EXPECT_THAT(gap, HasSubstr("2 values are NaN or infinite (×)"));
  EXPECT_EQ(Count(gap, ">×<"), 2);
  const std::string one = SvgFile({ChartOf({2.5})}, 800, 400);
  EXPECT_EQ(Count(one, "<circle"), 1);
  EXPECT_THAT(one, Not(HasSubstr("no values")));
}

TEST(SvgChart, SaysThatThereIsNothing) {
  for (const Chart& chart : {ChartOf({}), Chart{}}) {
    const std::string svg = SvgFile({chart}, 800, 400);
    EXPECT_EQ(MarkupProblem(svg), "");
    EXPECT_THAT(svg, HasSubstr("no values yet"));
  }
  EXPECT_THAT(SvgFile({ChartOf({kNan, kNan})}, 800, 400), HasSubstr("no finite values"));
}

TEST(SvgChart, StaysInItsFrameForExtremeNumbers) {
  for (const std::vector<double>& y :
       {std::vector<double>{-kGreatest, kGreatest}, {5e-324, 0}, {1e300, 1}, {1e-8, 1e-8}}) {
    const std::string svg = SvgFile({ChartOf(y)}, 800, 400);
    EXPECT_EQ(MarkupProblem(svg), "");
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
    EXPECT_EQ(Count(svg, "<polyline"), 1);
  }
}

TEST(SvgChart, EscapesEveryText) {
  const std::string hostile = "<script>alert(1)</script>\"'&\x1b[31m\xEF\xBF\xBF";
  Chart chart = ChartOf({1, 2});
  chart.title = chart.note = chart.x_name = chart.curves[0].name = hostile;
  const std::string svg = SvgFile({chart}, 800, 400);
  EXPECT_EQ(MarkupProblem(svg), "");
  EXPECT_THAT(svg,
              AllOf(Not(HasSubstr("<script")), Not(HasSubstr("\x1b")),
                    HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;\\x1b[31m"),
                    HasSubstr("\\uffff")));
}

TEST(SvgChart, WrapsTheNamesOfManyCurves) {
  Chart chart = ChartOf({1, 2});
  const Curve curve = chart.curves[0];
  for (int i = 1; i < 8; ++i) chart.curves.push_back(curve);
  for (Curve& each : chart.curves) each.name = std::string(200, 'x');
  const std::string svg = SvgFile({chart}, 800, 400);
  EXPECT_THAT(svg,
              AllOf(HasSubstr("y=\"62.0\" class=\"f0\""), Not(HasSubstr(std::string(41, 'x')))));
}

TEST(MarkupCheck, FindsWhatIsWrong) {
  for (const char* wrong : {"<a>", "<a></b>", "a & b", "<a b=c></a>", "<a b=\"c></a>", "</a>"}) {
    EXPECT_NE(MarkupProblem(wrong), "") << wrong;
  }
}

TEST(TextChart, DrawsInBrailleAndColours) {
  std::vector<double> falling;
  for (int i = 0; i < 200; ++i) falling.push_back(5 - i * 0.02);
  Chart chart = ChartOf(falling);
  chart.curves[0].name = "demo";
  const std::vector<std::string> lines = TextChart(chart, {.columns = 60, .rows = 8});
  EXPECT_EQ(lines.size(), 2u + 8 + 3) << Joined(lines);
  EXPECT_EQ(lines[0], "loss");
  EXPECT_THAT(lines[1], HasSubstr("━\x1B[0m demo"));
  EXPECT_THAT(lines[2], HasSubstr("5 ┤\x1B[94m\xE2\xA0")) << "it begins at the top left";
  EXPECT_THAT(lines.back(), HasSubstr("step"));
  EXPECT_THAT(lines[lines.size() - 2], HasSubstr("100"));
}

TEST(TextChart, NoLineIsWiderThanTheTerminal) {
  Chart chart = ChartOf({1e-7, 2e-7, 3e-7});
  chart.title = chart.note = chart.curves[0].name = std::string(300, 'x');
  for (const int columns : {30, 31, 57, 80, 160}) {
    for (const bool unicode : {false, true}) {
      for (const std::string& line : TextChart(
               chart, {.columns = columns, .rows = 6, .unicode = unicode, .colours = false})) {
        EXPECT_LE(DisplayWidth(line), columns) << line;
      }
    }
  }
}

TEST(TextChart, TellsCurvesApartWithoutColours) {
  Chart chart = ChartOf({1, 1, 1, 1});
  chart.curves[0].name = "low";
  chart.curves.push_back({.name = "high", .x = {1, 2, 3, 4}, .y = {2, 2, 2, 2}, .colour = 1});
  chart.curves.push_back({.name = "val", .x = {2}, .y = {1.5}, .dots = true, .colour = 2});
  const std::string text =
      Joined(TextChart(chart, {.columns = 60, .rows = 9, .unicode = true, .colours = false}));
  EXPECT_THAT(text, AllOf(HasSubstr("a low, last 1.000   b high, last 2.000   ● val, last 1.500"),
                          Not(HasSubstr("aaaa")), Not(HasSubstr("\x1B"))));
  const std::string area = text.substr(text.find('\n', text.find("● val")));
  EXPECT_GE(Count(area, "a"), 2) << text;
  EXPECT_GE(Count(area, "b"), 2) << text;
  EXPECT_EQ(Count(area, "●"), 1) << text;
  EXPECT_GT(Count(area, "\xE2\xA0") + Count(area, "\xE2\xA1") + Count(area, "\xE2\xA2") +
                Count(area, "\xE2\xA3"),
            50)
      << "the lines stay: " << text;
  const std::string ascii = Joined(
      TextChart(ChartOf({1, 2, 3}), {.columns = 60, .rows = 9, .unicode = false, .colours = true}));
  for (const char c : ascii) EXPECT_LT(static_cast<unsigned char>(c), 0x80) << ascii;
}

TEST(TextChart, WithoutColoursOnlyTheColoursAreGone) {
  std::vector<double> falling;
  for (int i = 0; i < 200; ++i) falling.push_back(5 - i * 0.02);
  Chart chart = ChartOf(falling);
  chart.curves[0].name = "training";
  chart.curves.push_back(
      {.name = "validation", .x = {50, 150}, .y = {4, 2}, .dots = true, .colour = 1});
  std::string coloured = Joined(TextChart(chart, {.columns = 60, .rows = 8}));
  for (size_t at = coloured.find('\x1B'); at != std::string::npos; at = coloured.find('\x1B')) {
    coloured.erase(at, coloured.find('m', at) - at + 1);
  }
  EXPECT_EQ(Joined(TextChart(chart, {.columns = 60, .rows = 8, .colours = false})), coloured);
}

TEST(TextChart, WithoutUnicodeEveryCurveIsALetter) {
  Chart chart = ChartOf({1, 2, 3});
  chart.curves[0].name = "training";
  chart.curves.push_back({.name = "validation", .x = {2}, .y = {1}, .dots = true, .colour = 1});
  for (const bool colours : {false, true}) {
    const std::string text =
        Joined(TextChart(chart, {.columns = 60, .rows = 8, .unicode = false, .colours = colours}));
    EXPECT_THAT(text, AllOf(HasSubstr("a"), HasSubstr("B")));
    for (const char c : text) EXPECT_LT(static_cast<unsigned char>(c), 0x80) << text;
  }
}

TEST(TextChart, ShowsGapsSinglePointsAndNothing) {
  const TextSize size{.columns = 60, .rows = 6, .unicode = true, .colours = false};
  EXPECT_THAT(Joined(TextChart(ChartOf({}), size)), HasSubstr("no values yet"));
  EXPECT_THAT(Joined(TextChart(ChartOf({kNan}), size)),
              AllOf(HasSubstr("1 value is NaN or infinite (×)"), HasSubstr("no finite values")));
  const std::string one = Joined(TextChart(ChartOf({2.5}), size));
  EXPECT_EQ(Count(one, "\xE2\xA0") + Count(one, "\xE2\xA1") + Count(one, "\xE2\xA2"), 1) << one;
  for (const std::vector<double>& y :
       {std::vector<double>{-kGreatest, kGreatest}, {1, kNan, kInfinite, 2}, {0, 0, 0}}) {
    EXPECT_THAT(Joined(TextChart(ChartOf(y), size)), Not(HasSubstr("nan")));
  }
}

TEST(TextChart, MarksWhatIsNotFiniteUpToTheEnd) {
  const TextSize size{.columns = 60, .rows = 6, .unicode = false, .colours = false};
  const std::vector<std::string> lines = TextChart(ChartOf({3, 2, 1, kNan, kNan}), size);
  EXPECT_EQ(lines[0], "loss; 2 values are NaN or infinite (x)");
  const std::string& floor = lines[6];  // the last row of the area
  EXPECT_EQ(Count(floor, "x"), 2) << floor;
  EXPECT_EQ(floor.back(), 'x') << "a run that ends so is drawn to its end";
}

TEST(TextChart, NamesAreCleaned) {
  Chart chart = ChartOf({1, 2});
  chart.curves[0].name = "a\x1b]0;x\x07\nb";
  const std::string text = Joined(TextChart(chart, {.columns = 80, .rows = 4, .colours = false}));
  EXPECT_THAT(text, HasSubstr("a\\x1b]0;x\\x07\\nb"));
}

TEST(ChartGrid, PutsChartsBesideAndBelowEachOther) {
  Chart named = ChartOf({3, 2, 1});
  named.title = "loss";
  named.curves[0].name = "training";
  Chart plain = ChartOf({1, 2, 3});
  plain.title = "speed";
  const std::vector<std::string> lines =
      ChartGrid({named, plain, plain}, {.columns = 100, .rows = 25, .colours = false});
  ASSERT_EQ(lines.size(), 25u) << Joined(lines);
  EXPECT_THAT(lines[0], testing::MatchesRegex("loss {47}speed"));
  EXPECT_THAT(lines[1], HasSubstr("━ training"));
  EXPECT_THAT(lines[11], testing::MatchesRegex(" +step {45,}step")) << Joined(lines);
  EXPECT_EQ(lines[12], "");
  EXPECT_EQ(lines[13], "speed");
}

TEST(ChartGrid, ColoursTakeNoRoom) {
  const Chart chart = ChartOf({3, 2, 1});
  const GridRoom room{.columns = 100, .rows = 12, .colours = false};
  GridRoom coloured = room;
  coloured.colours = true;
  std::string text = Joined(ChartGrid({chart, chart}, coloured));
  EXPECT_THAT(text, HasSubstr("\x1B[94m"));
  for (size_t at = text.find('\x1B'); at != std::string::npos; at = text.find('\x1B')) {
    text.erase(at, text.find('m', at) - at + 1);
  }
  EXPECT_EQ(text, Joined(ChartGrid({chart, chart}, room)));
}

TEST(ChartGrid, IsNeverLargerThanItsRoom) {
  const std::vector<Chart> charts(6, ChartOf({3, 2, 1}));
  for (const int columns : {20, 45, 46, 94, 95, 143, 144, 300}) {
    for (const int rows : {-3, 0, 9, 10, 20, 21, 32, 60}) {
      const auto lines = ChartGrid(charts, {.columns = columns, .rows = rows, .colours = false});
      EXPECT_EQ(lines.empty(), columns < 46 || rows < 10) << columns << " x " << rows;
      EXPECT_LE(static_cast<int>(lines.size()), std::max(rows, 0));
      for (const std::string& line : lines) EXPECT_LE(DisplayWidth(line), columns) << line;
    }
  }
  EXPECT_TRUE(ChartGrid({}, {.columns = 100, .rows = 40}).empty());
}

}  // namespace
}  // namespace nsa::client
