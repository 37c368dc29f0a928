#include "bench/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace baltoro {
namespace {

constexpr double kWidth = 460, kHeight = 260, kLeft = 60, kTop = 60;  // of the plot in its panel
constexpr double kPanelWidth = 660, kPanelHeight = 380;
constexpr const char* kColours[] = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e5ea2", "#c98a1b"};

// 1, 2 or 5 times a power of ten, so that about five fit.
double StepOf(double range) {
  const double raw = range / 5, ten = std::pow(10, std::floor(std::log10(raw)));
  return raw <= ten ? ten : raw <= 2 * ten ? 2 * ten : raw <= 5 * ten ? 5 * ten : 10 * ten;
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return out;
}

class Panel {
 public:
  Panel(const PlotPanel& panel, double left, double top)
      : panel_(panel), left_(left + kLeft), top_(top + kTop) {
    for (const PlotLine& line : panel.lines) {
      for (const auto& [x, y] : line.points) {
        x_max_ = std::max(x_max_, x);
        y_max_ = std::max(y_max_, y);
      }
    }
    if (panel.percent || y_max_ <= 0) y_max_ = 1;
    if (x_max_ <= 0) x_max_ = 1;
  }

  std::string Draw() const {
    std::string out = fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"13\">{}</text>\n", left_,
                                  top_ - 20, Escaped(panel_.title));
    const double step = panel_.percent ? 0.2 : StepOf(y_max_);
    for (double at = 0; at <= y_max_ * 1.0001; at += step) {
      out += fmt::format(
          "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
          "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
          left_, left_ + kWidth, Y(at), Y(at), left_ - 6, Y(at) + 4,
          panel_.percent ? fmt::format("{:.0f} %", at * 100) : fmt::format("{:g}", at));
    }
    const double x_step = StepOf(x_max_);
    for (double at = panel_.doubling ? 1 : 0; at <= x_max_ * 1.0001;
         at = panel_.doubling ? at * 2 : at + x_step) {
      out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}</text>\n", X(at),
                         top_ + kHeight + 18, at);
    }
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       left_ + kWidth / 2, top_ + kHeight + 38, panel_.x_name);
    for (size_t i = 0; i < panel_.lines.size(); ++i) out += Line(i);
    return out;
  }

 private:
  double X(double value) const {
    if (!panel_.doubling) return left_ + kWidth * value / x_max_;
    return left_ + kWidth * std::log2(std::max(value, 1.0)) / std::log2(std::max(x_max_, 2.0));
  }
  double Y(double value) const { return top_ + kHeight * (1 - std::min(value / y_max_, 1.0)); }

  std::string Line(size_t number) const {
    const PlotLine& line = panel_.lines[number];
    const char* colour = kColours[number % std::size(kColours)];
    std::string points, out;
    for (const auto& [x, y] : line.points) {
      points += fmt::format("{:.1f},{:.1f} ", X(x), Y(y));
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", X(x), Y(y),
                         colour);
    }
    return out + fmt::format(
                     "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n"
                     "<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n",
                     points, colour, left_ + kWidth + 12,
                     top_ + 20 + 18 * static_cast<double>(number), colour, Escaped(line.name));
  }

  const PlotPanel& panel_;
  double left_, top_;
  double x_max_ = 0, y_max_ = 0;
};

}  // namespace

std::string PlotSvg(const std::string& title, const std::vector<PlotPanel>& panels) {
  const size_t columns = std::clamp<size_t>(panels.size(), 1, 2);
  const size_t rows = (panels.size() + columns - 1) / columns;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{}\" y=\"20\" font-size=\"13\">{}</text>\n",
      kPanelWidth * static_cast<double>(columns), kPanelHeight * static_cast<double>(rows), kLeft,
      Escaped(title));
  for (size_t i = 0; i < panels.size(); ++i) {
    out += Panel(panels[i], kPanelWidth * static_cast<double>(i % columns),
                 kPanelHeight * static_cast<double>(i / columns))
               .Draw();
  }
  return out + "</svg>\n";
}

}  // namespace baltoro
