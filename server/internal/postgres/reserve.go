package postgres

import "reflect"

// reserve gives the lists of a statement's parameters room for n rows, once for each batch. Without
// it they grow by doubling, twenty of them at a time: a seventh of the server's time in a drain.
func reserve(params any, n int) {
	v := reflect.ValueOf(params).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice {
			f.Set(reflect.MakeSlice(f.Type(), 0, n))
		}
	}
}
