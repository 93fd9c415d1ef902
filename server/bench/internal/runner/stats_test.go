package runner

import "testing"

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   spread
	}{
		{[]float64{2}, spread{2, 2, 2}},
		{[]float64{3, 1, 2}, spread{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, spread{2.5, 1, 4}},
		{[]float64{9, 0.5, 1, 1, 1}, spread{1, 0.5, 9}},
	} {
		given := append([]float64{}, tt.values...)
		if got := spreadOf(given); got != tt.want {
			t.Errorf("%v: got %+v, want %+v", tt.values, got, tt.want)
		}
		for i := range given {
			if given[i] != tt.values[i] {
				t.Errorf("%v became %v", tt.values, given)
			}
		}
	}
}

// A rate has to be high, a latency low.
func TestGoal_HasADirection(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		goal  goal
		value float64
		met   bool
	}{
		{atLeast(2), 2, true}, {atLeast(2), 3, true}, {atLeast(2), 1.99, false},
		{atMost(0.7), 0.7, true}, {atMost(0.7), 0.2, true}, {atMost(0.7), 0.71, false},
	} {
		if got := tt.goal.met(tt.value); got != tt.met {
			t.Errorf("%s: %g is met: %v", tt.goal, tt.value, got)
		}
		if closer := tt.goal.slack(tt.value) >= 1; closer != tt.met {
			t.Errorf("%s: the slack of %g is %g", tt.goal, tt.value, tt.goal.slack(tt.value))
		}
	}
}
